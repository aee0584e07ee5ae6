"""Figures as inline SVG for the HTML pages.

Lines are drawn in placeholder colours that `to_svg` replaces by CSS variables, so that one figure
fits the light and the dark style of a page.
"""

from __future__ import annotations

import io
import re
from functools import cache
from html import escape
from typing import Any

from markupsafe import Markup

from glasshouse.errors import RunError
from glasshouse.extras import install_command
from glasshouse.terminal import terminal_safe

INK = "#010203"
COLOURS = tuple(f"#0102{number:02x}" for number in range(4, 14))
CSS_COLOURS = {INK: "currentColor"} | {c: f"var(--line-{n})" for n, c in enumerate(COLOURS)}


def new_figure(size: tuple[float, float], columns: int = 1, **settings: Any) -> tuple[Any, Any]:
    """A matplotlib figure and its axes: an array of them if there are several columns.

    It is made without pyplot, which would keep it, and whose backend belongs to the caller: in a notebook,
    their own plots must still be shown.
    """
    figure = _figure_class()(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns, **settings)


@cache
def _figure_class() -> type[Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(f"Figures need matplotlib: {install_command('report')}") from None

    class NotebookFigure(Figure):
        """A figure that a notebook shows also before pyplot is imported there."""

        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png")
            return out.getvalue()

    return NotebookFigure


def new_axes(title: str) -> tuple[Any, Any]:
    """A small figure and its axes in the style of the pages."""
    figure, axis = new_figure((3.5, 2.3))
    style_axes(axis, title)
    return figure, axis


def style_axes(axis: Any, title: str) -> None:
    """Title, labels and spines in the style of the pages."""
    axis.set_title(title, fontsize=9, loc="left", color=INK)
    axis.set_xlabel("step", fontsize=8)
    for part in (axis.xaxis, axis.yaxis):
        part.label.set_color(INK)
        part.label.set_fontsize(8)
    axis.tick_params(colors=INK, labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.spines[["left", "bottom"]].set_alpha(0.4)


def escape_mathtext(text: str) -> str:
    """Text that matplotlib does not parse as a formula, with control characters escaped."""
    lines = (terminal_safe(line) for line in text.split("\n"))
    return "\n".join(lines).replace("$", r"\$")


def to_svg(figure: Any, description: str) -> Markup:
    """The <svg> element, without the XML header and metadata of a file."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'font: ([\d.]+)px [^;"]*', r"font: \1px var(--font)", text)
    for colour, variable in CSS_COLOURS.items():
        text = text.replace(colour, variable)
    label = escape(description, quote=True)
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))
