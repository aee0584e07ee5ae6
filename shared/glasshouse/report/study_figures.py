"""A study's pictures: a panel of curves a measure, and every effect beside its null and its ceiling.

Each is drawn once in stand-in colours for the page (see figures.py) and once in the light page's own
for files.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from glasshouse.report import figures
from glasshouse.report.rollout_text import printable
from glasshouse.report.style import CSS
from glasshouse.store.atomic_files import write_bytes
from glasshouse.study.analysis import Analysis, Line
from glasshouse.study.bounds import bounds
from glasshouse.study.questions import Contrast
from glasshouse.study.verdict import Verdict

LIGHT = tuple(re.findall(r"--line-\d: (#[0-9a-f]{6})", CSS)[: len(figures.COLOURS)])
"""The page's line colours by day."""
MARKERS = "os^Dvp"
"""Arms are told apart by shape as well as by colour."""
DASHES = ("-", "--", ":")
"""Beyond as many arms as there are colours."""
GAP = 0.075
"""Least distance of two labels, as a share of the panel's height."""

TITLE = 72
"""Longest title of a panel, in characters."""

Draw = Callable[[Sequence[str]], Any]
"""Colours to a figure."""


def panels(analysis: Analysis) -> dict[str, tuple[str, Draw]]:
    """By file name: what the picture shows, and how it is drawn."""
    found: dict[str, tuple[str, Draw]] = {}
    if any(bounds(a.answer.question.measure) for a in analysis.answers):
        found["effects"] = (
            "Effects with their 95 % intervals, nulls and ceilings",
            lambda colours: _effects(analysis, colours),
        )
    for name in analysis.study.measures:
        lines = [line for line in analysis.lines if line.measure == name]
        told = f"{name} over training steps, mean over seeds with 95 % bands"
        found[f"curve-{_slug(name)}"] = told, _curve(analysis, name, lines)
    return found


def embedded(analysis: Analysis) -> dict[str, str]:
    """The pictures as SVG for the page, by name."""
    return {
        name: figures.svg(draw(figures.COLOURS), told)
        for name, (told, draw) in panels(analysis).items()
    }


def save(analysis: Analysis, folder: Path) -> list[Path]:
    """Every picture as PNG and SVG."""
    import matplotlib

    figures.library()
    written = []
    for name, (_, draw) in panels(analysis).items():
        figure = draw(LIGHT)
        for kind, settled in (("png", {"Software": None}), ("svg", {"Date": None})):
            out = io.BytesIO()
            with matplotlib.rc_context({"svg.hashsalt": name}):
                figure.savefig(out, format=kind, dpi=160, facecolor="white", metadata=settled)
            write_bytes(folder / f"{name}.{kind}", out.getvalue())
            written.append(folder / f"{name}.{kind}")
        figures.library().close(figure)
    return written


# --- curves ----------------------------------------------------------------------------------


def _curve(analysis: Analysis, measure: str, lines: Sequence[Line]) -> Draw:
    def draw(colours: Sequence[str]) -> Any:
        figure, axis = _panel(measure, analysis.study.measures[measure], (4.9, 3.0))
        last = max((line.steps[-1] for line in lines), default=0)
        shift = max(last, 1) * 0.022
        labels = []
        for line in lines:
            place = analysis.arms.index(line.arm)
            colour = colours[place % len(colours)]
            dash = DASHES[place // len(colours) % len(DASHES)]
            marker = MARKERS[place % len(MARKERS)]
            _band(axis, line, colour, dash, marker)
            x = line.steps[-1] + shift * (place + 1.5)
            seeds = [v for v in line.last.values() if v is not None]
            axis.plot([x] * len(seeds), seeds, marker, color=colour, ms=2.6, alpha=0.65, mew=0)
            if line.mean[-1] is not None:
                labels.append((line.mean[-1], line.arm, colour))
        if bounds(measure):
            axis.set_ylim(-0.03, 1.03)
        axis.set_xticks(sorted({step for line in lines for step in line.steps}))
        _label(axis, labels, last + shift * (len(analysis.arms) + 2))
        return figure

    return draw


def _band(axis: Any, line: Line, colour: str, dash: str, marker: str) -> None:
    """Undefined points leave a gap."""
    gap = float("nan")
    mean, low, high = (
        [gap if v is None else v for v in values] for values in (line.mean, line.low, line.high)
    )
    axis.plot(line.steps, mean, dash, color=colour, linewidth=1.6, marker=marker, ms=3.5)
    axis.fill_between(line.steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _label(axis: Any, labels: Sequence[tuple[float, str, str]], x: float) -> None:
    """Each arm's name beside its last point, moved apart where they would overlap."""
    bottom, top = axis.get_ylim()
    axis.set_ylim(bottom, top)
    ordered = sorted(labels)
    places = spread([value for value, _, _ in ordered], (top - bottom) * GAP, bottom, top)
    for (_, name, colour), y in zip(ordered, places, strict=True):
        axis.annotate(
            literal(name), (x, y), color=colour, fontsize=8, va="center", annotation_clip=False
        )


def spread(values: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Rising values moved so that neighbours are a gap apart, within bottom and top if there is room.

    Example: `spread([0.5, 0.5], 0.1, 0, 1)` is [0.45, 0.55].
    """
    placed: list[list[float]] = []  # groups that touch: (middle, how many)
    for value in values:
        placed.append([value, 1.0])
        while len(placed) > 1:
            (a, n), (b, m) = placed[-2], placed[-1]
            if b - a >= gap * (n + m) / 2:
                break
            placed[-2:] = [[(a * n + b * m) / (n + m), n + m]]
    found = []
    for middle, n in placed:
        half = gap * (n - 1) / 2
        middle = max(bottom + half, min(top - half, middle))
        found += [middle - half + gap * i for i in range(int(n))]
    return found


# --- effects ---------------------------------------------------------------------------------


def _effects(analysis: Analysis, colours: Sequence[str]) -> Any:
    """A row a question of a bounded measure: effect, null, ceiling; filled where it is shown."""
    asked = [a for a in analysis.answers if bounds(a.answer.question.measure)]
    size = (6.6, 0.75 + 0.62 * len(asked))
    figure, axis = _panel(
        "effects", "filled if shown; grey: null arm; bar: ceiling; shade: margin", size
    )
    axis.axvline(0, color=figures.INK, alpha=0.4, linewidth=0.8)
    for row, answered in enumerate(asked):
        a = answered.answer
        sure = answered.verdict in (Verdict.SHOWN, Verdict.OPPOSITE)
        colour = colours[1 if answered.verdict is Verdict.OPPOSITE else 0]
        _span(axis, a.effect, -row, colour, full=sure)
        if a.null:
            _span(axis, a.null, -row - 0.3, figures.INK, full=False, faint=0.45)
        room = {"rises": a.room.rise, "falls": a.room.fall}.get(a.question.expect)
        if room is not None:
            axis.plot([room] * 2, [-row - 0.2, -row + 0.2], color=figures.INK, linewidth=1.4)
        if a.question.margin is not None:
            ends = [-a.question.margin, a.question.margin]
            axis.fill_betweenx([-row - 0.2, -row + 0.2], *ends, color=colour, alpha=0.12, lw=0)
    names = [literal(_row(a.answer.question.measure, a.answer.effect)) for a in asked]
    axis.set_yticks([-row for row in range(len(asked))], names)
    axis.set_ylim(-len(asked) + 0.4, 0.5)
    axis.set_xlabel("effect", fontsize=8)
    return figure


def _row(measure: str, c: Contrast) -> str:
    return f"{measure}\n{c.arm} − {c.reference}"


def _span(axis: Any, c: Contrast, y: float, colour: str, full: bool, faint: float = 1.0) -> None:
    p = c.paired
    if p.effect is None or p.low is None or p.high is None:
        return
    axis.plot([p.low, p.high], [y, y], color=colour, linewidth=2, alpha=faint)
    face = colour if full else "none"
    axis.plot([p.effect], [y], "o", color=colour, mfc=face, ms=6 if faint == 1 else 4, alpha=faint)


# --- parts -----------------------------------------------------------------------------------


def _panel(title: str, told: str, size: tuple[float, float]) -> tuple[Any, Any]:
    figure, axis = figures.axes(literal(title))
    figure.set_size_inches(*size)
    said = shorten(f"{title}: {told}" if told else title, TITLE, placeholder=" …")
    axis.set_title(literal(said), fontsize=8.5, loc="left", color=figures.INK)
    return figure, axis


def literal(name: str) -> str:
    """A label is no formula."""
    return "\n".join(printable(part) for part in name.split("\n")).replace("$", r"\$")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
