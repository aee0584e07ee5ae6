"""The figures of a study: one panel of curves per measure, and all effects with nulls and ceilings."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from glasshouse.files import write_bytes
from glasshouse.measurement.registry import lookup
from glasshouse.study.analysis import Analysis
from glasshouse.study.answers import Answer, Verdict
from glasshouse.study.contrasts import Contrast
from glasshouse.study.sentences import name_measure
from glasshouse.view import figures

if TYPE_CHECKING:
    from glasshouse.study.runner import StudyResult

COLOURS = (
    "#1b6b4c", "#c2562d", "#3a5fa8", "#8a5aa3", "#a3841f", "#4f8a99", "#b8336a", "#5c5c5c", "#7fa650", "#6b3e26",
)  # fmt: skip
"""Colours of lines."""
MARKERS = "os^Dvp*X<P"
"""Arms differ in shape as well as in colour; ten of each."""
LABEL_GAP = 0.075
"""Smallest distance between two labels, as a share of the panel's height."""
MIN_LINE_POINTS = 3
"""A line through two points would suggest a trend that nobody measured: they are drawn as points."""
SEED_GAP = 0.13
"""Distance of the seeds' dots below their mean, in rows of the figure of effects."""
MAX_TITLE = 72
"""Longest line of a panel's title, in characters."""


def plan_figures(analysis: Analysis) -> dict[str, tuple[str, Callable[[], Any]]]:
    """By file name: a description of the figure, and a function that draws it with matplotlib."""
    planned: dict[str, tuple[str, Callable[[], Any]]] = {}
    bounded = [answer for answer in analysis.answers if lookup(answer.question.measure).bounds]
    if bounded:
        description = "Effects with their 95 % intervals, nulls and ceilings"
        planned["effects"] = description, partial(_draw_effects, bounded)
    for measure in analysis.study.measures:
        name = "curve-" + re.sub(r"[^a-z0-9]+", "-", measure.lower()).strip("-")
        description = (
            f"{name_measure(measure)} over training steps, mean over seeds with 95 % bands"
        )
        planned[name] = description, partial(_draw_curves, analysis, measure)
    return planned


def plot_study(result: StudyResult) -> dict[str, Any]:
    """The figures of a study by name, as matplotlib figures: effects, and a curve per measure."""
    return {name: draw() for name, (_, draw) in plan_figures(result.analysis).items()}


def save_figures(analysis: Analysis, folder: Path) -> None:
    """Write all figures as SVG."""
    import matplotlib

    for name, (_, draw) in plan_figures(analysis).items():
        out = io.BytesIO()
        # without a date and with fixed ids the bytes are reproducible
        with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            draw().savefig(out, format="svg", facecolor="white", metadata={"Date": None})
        write_bytes(folder / f"{name}.svg", out.getvalue())


def _new_panel(title: str, description: str, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure with the title on one line and the description below it."""
    lines = [shorten(line, MAX_TITLE, placeholder=" …") for line in (title, description) if line]
    figure, axis = figures.new_axes("")
    figure.set_size_inches(*size)
    text = figures.escape_mathtext("\n".join(lines))
    axis.set_title(text, fontsize=8.5, loc="left", color=figures.INK)
    return figure, axis


# --- curves ----------------------------------------------------------------------------------


def _draw_curves(analysis: Analysis, measure: str) -> Any:
    curves = [curve for curve in analysis.curves if curve.measure == measure]
    description = analysis.study.measures[measure]
    figure, axis = _new_panel(name_measure(measure), description, (4.9, 3.0))
    last = max((curve.steps[-1] for curve in curves), default=0)
    shift = max(last, 1) * 0.022
    labels = []
    for curve in curves:
        index = analysis.arms.index(curve.arm)
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        rows = list(zip(curve.mean, curve.low, curve.high, strict=True))
        plot_curve(axis, curve.steps, rows, lookup(measure).bounds, colour, marker)
        x = curve.steps[-1] + shift * (index + 1.5)
        seeds = [v for v in curve.last.values() if v is not None]
        axis.plot([x] * len(seeds), seeds, marker, color=colour, ms=2.6, alpha=0.65, mew=0)
        if curve.mean[-1] is not None:
            labels.append((curve.mean[-1], curve.arm, colour))
    if lookup(measure).bounds:
        axis.set_ylim(-0.03, 1.03)
    steps = sorted({step for curve in curves for step in curve.steps})
    axis.set_xticks(steps[:: 1 + (len(steps) - 1) // 8])
    _label_arms(axis, labels, last, last + shift * (len(analysis.arms) + 3))
    return figure


def plot_curve(
    axis: Any,
    steps: Sequence[int],
    rows: Sequence[tuple[float | None, float | None, float | None]],
    bounds: tuple[float, float] | None,
    colour: str,
    marker: str,
    label: str | None = None,
) -> None:
    """Draw the mean and the interval of each step. Undefined points leave a gap. The band stays within what is
    possible, unlike Student's interval."""
    mean, low, high = (
        [float("nan") if v is None else v for v in values] for values in zip(*rows, strict=True)
    )
    if bounds:
        low, high = ([min(max(v, bounds[0]), bounds[1]) for v in values] for values in (low, high))
    if len(steps) < MIN_LINE_POINTS:
        axis.plot(steps, mean, marker, color=colour, ms=4.5, label=label)
        axis.vlines(steps, low, high, color=colour, linewidth=1.2, alpha=0.6)
        return
    axis.plot(steps, mean, color=colour, linewidth=1.6, marker=marker, ms=3.5, label=label)
    axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _label_arms(axis: Any, labels: Sequence[tuple[float, str, str]], left: float, x: float) -> None:
    """Write each arm's name at `x`, without overlaps, joined by a thin line to its last point."""
    bottom, top = axis.get_ylim()
    axis.set_ylim(bottom, top)
    ordered = sorted(labels)
    values = [value for value, _, _ in ordered]
    heights = spread_labels(values, (top - bottom) * LABEL_GAP, bottom, top)
    for (value, name, colour), y in zip(ordered, heights, strict=True):
        text = figures.escape_mathtext(name)
        axis.annotate(text, (x, y), color=colour, fontsize=8, va="center", annotation_clip=False)
        leader = [(left, value), (x - 0.2 * (x - left), value), (x - 0.05 * (x - left), y)]
        axis.plot(*zip(*leader, strict=True), color=colour, linewidth=0.5, alpha=0.5, clip_on=False)


def spread_labels(values: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Move ascending values apart so that neighbours have a gap, within bottom and top if possible.

    Example: `spread_labels([0.5, 0.5], 0.1, 0, 1)` is [0.45, 0.55].
    """
    groups: list[list[float]] = []  # [centre, size] of labels that touch
    for value in values:
        groups.append([value, 1.0])
        while len(groups) > 1:
            (a, n), (b, m) = groups[-2], groups[-1]
            if b - a >= gap * (n + m) / 2:
                break
            groups[-2:] = [[(a * n + b * m) / (n + m), n + m]]
    positions = []
    for centre, size in groups:
        half = gap * (size - 1) / 2
        centre = max(bottom + half, min(top - half, centre))
        positions += [centre - half + gap * i for i in range(int(size))]
    return positions


# --- effects ---------------------------------------------------------------------------------


def _draw_effects(answers: Sequence[Answer]) -> Any:
    """One row per question about a bounded measure; filled markers are shown effects."""
    figure, axis = _new_panel(
        "effects",
        "filled: shown; dots: seeds; grey: null arm; bar: ceiling; shade: margin",
        (6.6, 0.75 + 0.62 * len(answers)),
    )
    axis.axvline(0, color=figures.INK, alpha=0.4, linewidth=0.8)
    for row, answer in enumerate(answers):
        margin, heights = answer.question.margin, [-row - 0.2, -row + 0.2]
        is_shown = answer.verdict in (Verdict.SHOWN, Verdict.OPPOSITE)
        colour = COLOURS[answer.verdict is Verdict.OPPOSITE]
        _plot_effect(axis, answer.effect, -row, colour, filled=is_shown)
        if answer.null:
            _plot_effect(axis, answer.null, -row - 0.32, figures.INK, filled=False, alpha=0.45)
        if answer.ceiling is not None:
            axis.plot([answer.ceiling] * 2, heights, color=figures.INK, linewidth=1.4)
        if margin is not None:
            axis.fill_betweenx(heights, -margin, margin, color=colour, alpha=0.12, lw=0)
    axis.set_yticks(
        [-row for row in range(len(answers))],
        [figures.escape_mathtext(_effect_label(answer)) for answer in answers],
    )
    axis.set_ylim(-len(answers) + 0.4, 0.5)
    axis.set_xlabel("effect", fontsize=8)
    return figure


def _effect_label(answer: Answer) -> str:
    question, measure = answer.question, name_measure(answer.question.measure)
    if question.against_measure:
        return f"{question.arm}: {measure}\n− {name_measure(question.against_measure)}"
    return f"{measure}\n{question.arm} − {answer.reference}"


def _plot_effect(
    axis: Any, contrast: Contrast, y: float, colour: str, filled: bool, alpha: float = 1.0
) -> None:
    heights = [y - SEED_GAP] * len(contrast.differences)
    axis.plot(contrast.differences, heights, "o", color=colour, ms=2.4, mew=0, alpha=0.5 * alpha)
    if contrast.effect is None or contrast.low is None or contrast.high is None:
        return
    axis.plot([contrast.low, contrast.high], [y, y], color=colour, linewidth=2, alpha=alpha)
    face, size = colour if filled else "none", 6 if alpha == 1 else 4
    axis.plot([contrast.effect], [y], "o", color=colour, mfc=face, ms=size, alpha=alpha)
