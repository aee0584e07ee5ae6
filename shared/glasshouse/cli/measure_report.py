"""The results of `glasshouse measure`: as a table in the terminal, and as an HTML page with measures.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from glasshouse.files import check_output_folder, write_json, write_text
from glasshouse.measurement.file import FIT_TENTHS, MAX_ROLLOUTS, MeasuredCell, MeasureReport
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.seeds import PairedComparison
from glasshouse.terminal import count_noun, terminal_safe
from glasshouse.values import Measure
from glasshouse.view.html import render_page

MAX_CURVES = 6


def write_measure_report(report: MeasureReport, folder: Path) -> Path:
    """Write measures.json and report.html; returns the page."""
    check_output_folder("--out", folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "measures.json", report.as_dict())
    page = folder / "report.html"
    write_text(page, render_measure_page(report))
    return page


def render_measure_page(report: MeasureReport) -> str:
    settings = {
        "format": report.format,
        "fields": ", ".join(f"{name} = {column}" for name, column in report.mapping.items()),
        "behaviour": report.behaviour or "no column says what the behaviour is",
        "monitors": "; ".join(_describe_monitor(m) for m in report.monitors) or "none",
    }
    return render_page(
        "measure_page.html.j2",
        title=f"Rollouts of {Path(report.source).name}",
        description=f"{count_noun(report.rollouts, 'rollout')}, behaviour: "
        f"{report.behaviour or 'not given'}.",
        verdicts=list(compare_sentences(report)),
        curves=_draw_curves(report),
        tables=[(cell_name(c), _cell_note(c), list(_cell_rows(c))) for c in report.cells],
        settings=settings,
    )


def measure_tables(report: MeasureReport) -> Iterator[Table]:
    """One table per checkpoint and seed."""
    for cell in report.cells:
        table = Table(
            title=terminal_safe(f"{cell_name(cell)}: {_cell_note(cell)}"),
            title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold",
        )  # fmt: skip
        for column in ("measure", "value", "95 % interval", "null", "ceiling"):
            table.add_column(column, overflow="fold")
        for row in _cell_rows(cell):
            if row[5]:  # undefined measures are listed below the tables, with their reasons
                table.add_row(*(Text(terminal_safe(text)) for text in row[:5]))
        yield table


def undefined_sentences(report: MeasureReport) -> Iterator[str]:
    """Why measures are undefined: each reason once, with the measures that it concerns."""
    reasons: dict[str, list[str]] = {}
    for cell in report.cells:
        for name, measured in cell.measures.items():
            if measured.value is None:
                names = reasons.setdefault(measured.undefined, [])
                if (label := lookup(name).label) not in names:
                    names.append(label)
    for reason, names in reasons.items():
        yield f"undefined: {', '.join(names)}: {reason}."


def compare_sentences(report: MeasureReport, *, only_shown: bool = False) -> Iterator[str]:
    """What changed from the first checkpoint to the last, over seeds."""
    ends = report.checkpoints
    compared = [c for c in report.comparisons.values() if c.effect is not None]
    if only_shown and compared:
        shown = sum(c.shown for c in compared)
        smallest = min(c.smallest_p or 1.0 for c in compared)
        yield (
            f"{ends[0]} to {ends[-1]}: {shown} of {len(compared)} measures changed, by the seeds that have both "
            f"(with this many seeds, p is at least {smallest:.3g})."
        )
    for name, comparison in report.comparisons.items():
        if comparison.effect is None or (only_shown and not comparison.shown):
            continue
        yield (
            f"{lookup(name).label}: {comparison.effect:+.3f} ({comparison.low:+.3f} to "
            f"{comparison.high:+.3f}) from {ends[0]} to {ends[-1]} over {comparison.n} seeds, "
            f"p = {comparison.p:.4g}, after Holm {comparison.p_holm:.4g}: {_verdict(comparison)}."
        )
    if report.comparisons and all(c.effect is None for c in report.comparisons.values()):
        yield (
            f"{ends[0]} and {ends[-1]} share fewer than two seeds: the unit of a claim about training is "
            "the seed, so that intervals below are those of single runs."
        )


def cell_name(cell: MeasuredCell) -> str:
    return (
        f"checkpoint {cell.checkpoint}, seed {cell.seed}"
        if cell.checkpoint
        else f"seed {cell.seed}"
    )


def _verdict(comparison: PairedComparison) -> str:
    return "shown" if comparison.shown else "not shown"


def _cell_note(cell: MeasuredCell) -> str:
    problems = count_noun(cell.problems, "problem")
    if cell.is_sample:
        return (
            f"a sample of {problems}: of the {count_noun(cell.rollouts, 'rollout')}, at most "
            f"{MAX_ROLLOUTS:,} are measured"
        )
    return f"{count_noun(cell.rollouts, 'rollout')} of {problems}"


def _cell_rows(cell: MeasuredCell) -> Iterator[tuple[str, ...]]:
    for name, measured in cell.measures.items():
        label = lookup(name).label_with_unit
        if measured.value is None:
            yield label, f"undefined: {measured.undefined}", "", "", "", ""
        else:
            yield label, *_format_measure(measured), f"{measured.n:,}"


def _format_measure(measured: Measure) -> tuple[str, str, str, str]:
    between = null = ""
    if measured.low is not None and measured.high is not None:
        between = f"{_format(measured.low)} to {_format(measured.high)}"
    if measured.null is not None and measured.p is not None:
        null = f"{_format(measured.null)}, p = {measured.p:.4f}"
    ceiling = "" if measured.ceiling is None else _format(measured.ceiling)
    return _format(measured.value or 0.0), between or measured.undefined, null, ceiling


def _format(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _describe_monitor(monitor: Any) -> str:
    if "reason" in monitor:
        return f"{monitor['name']}: {monitor['reason']}"
    fitted = f", fitted on {FIT_TENTHS} tenths of the problems" if "threshold" in monitor else ""
    return f"{monitor['name']} ({monitor.get('kind', 'own')}, scope {monitor.get('scope', '')}{fitted})"


def _draw_curves(report: MeasureReport) -> list[Markup]:
    """A figure per measure that has a value at two checkpoints or more, with a line per seed."""
    from glasshouse.view import figures

    drawn: list[Markup] = []
    names = [name for name in report.cells[0].measures if len(report.checkpoints) > 1]
    for name in names:
        lines: dict[int, list[tuple[int, float]]] = {}
        for cell in report.cells:
            value = cell.measures[name].value
            if value is not None:
                point = (report.checkpoints.index(cell.checkpoint), value)
                lines.setdefault(cell.seed, []).append(point)
        if max((len(points) for points in lines.values()), default=0) < 2:
            continue
        if len(drawn) == MAX_CURVES:
            break
        label = terminal_safe(lookup(name).label_with_unit)
        figure, axis = figures.new_axes(figures.escape_mathtext(label))
        for points in lines.values():
            axis.plot(
                *zip(*points, strict=True), color=figures.COLOURS[0], marker="o", markersize=3
            )
        ticks = [figures.escape_mathtext(checkpoint) for checkpoint in report.checkpoints]
        axis.set_xticks(range(len(report.checkpoints)), ticks)
        axis.set_xlabel("checkpoint")
        drawn.append(figures.to_svg(figure, f"{label} by checkpoint, a line per seed"))
    return drawn
