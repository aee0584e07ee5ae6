"""Render HTML pages from the Jinja2 templates in `templates/`.

Every string that a template prints is escaped: control characters first, then HTML. Only `Markup`,
which this package uses for its own figures, is inserted unchanged. The pages have no scripts, and
their Content-Security-Policy forbids all requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

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
    """Example: `render_page("study_page.html.j2", title="my study", …)`"""
    return _ENVIRONMENT.get_template(template).render(context)
