"""What all figures of studies and of the demo share: their style, with matplotlib."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError, install_command
from glasshouse.files import write_text
from glasshouse.terminal import terminal_safe

INK = "#010203"
NEUTRAL = "#78828c"
"""Stands for INK in a figure that is read on white and on black."""


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


def write_svg(figure: Any, file: Path) -> None:
    """Write a figure without a background, readable on white and on black. Its bytes are reproducible."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    write_text(file, out.getvalue().replace(INK, NEUTRAL))


def escape_mathtext(text: str) -> str:
    """Text that matplotlib does not parse as a formula, with control characters escaped."""
    lines = (terminal_safe(line) for line in text.split("\n"))
    return "\n".join(lines).replace("$", r"\$")
