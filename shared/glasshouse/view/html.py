"""Render HTML pages, from the Jinja2 templates in `templates/` or from Markdown.

Every string that a template prints is escaped: control characters first, then HTML. Only `Markup`,
which this package uses for its own figures, is inserted unchanged. The pages have no scripts, and
their Content-Security-Policy forbids all requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from glasshouse.terminal import terminal_safe

TEMPLATES = Path(__file__).parent / "templates"
STYLESHEET = TEMPLATES / "style.css"


def _escape_controls(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return terminal_safe(value)
    return value


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    finalize=_escape_controls,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_page(template: str, **context: Any) -> str:
    """Example: `render_page("markdown_page.html.j2", title="my rollouts", body=text)`"""
    return _ENVIRONMENT.get_template(template).render(context)


def render_markdown_page(title: str, text: str, figures: Mapping[str, Markup]) -> str:
    """A page from Markdown. HTML in it is shown as text, and an image is one of the `figures`.

    Example: `render_markdown_page("a study", "# A study\\n\\n![effects](effects)", {"effects": svg})`
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")

    def image(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        return figures.get(str(token.attrs["src"]), escape(token.content))

    parser.add_render_rule("image", image)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return render_page("markdown_page.html.j2", title=title, body=Markup(parser.render(text)))


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, with control characters escaped.

    Example: `escape_markdown("7 * 8")` gives `7 \\* 8`
    """
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", terminal_safe(text))


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown whose first columns are left-aligned, and the others right-aligned."""
    marks = [":---" if place < left else "---:" for place in range(len(columns))]
    lines = [columns, marks, *rows]
    return "\n".join(f"| {' | '.join(' '.join(c.split()) for c in line)} |" for line in lines)
