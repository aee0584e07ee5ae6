"""The results of `glasshouse measure` as Markdown: rich prints it, and `report.html` is the same as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glasshouse.files import check_output_folder, write_json, write_text
from glasshouse.measurement.file import FIT_TENTHS, MAX_ROLLOUTS, MeasuredCell, MeasureReport
from glasshouse.measurement.reading import describe_reading
from glasshouse.measurement.registry import lookup, owner_of
from glasshouse.terminal import count_noun
from glasshouse.values import Measure
from glasshouse.view.html import escape_markdown, markdown_table, render_markdown_page

NOTE = """\
Intervals: cluster bootstrap over problems. Null: the same flags permuted among problems, with one-sided p. Ceiling: the
best possible value; for g-mean², the best that flagging at random reaches. docs/measure.md defines every measure."""


def write_measure_report(report: MeasureReport, folder: Path) -> Path:
    """Write measures.json and report.html; returns the page."""
    check_output_folder("--out", folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "measures.json", report.as_dict())
    page = folder / "report.html"
    title = f"Rollouts of {Path(report.source).name}"
    write_text(page, render_markdown_page(title, render_measures(report), {}))
    return page


def render_measures(report: MeasureReport) -> str:
    """What changed, in a sentence; a table of all checkpoints; why measures are undefined; how it was measured."""
    left_out = f", {report.unanswered:,} without an answer left out" if report.unanswered else ""
    line, *examples = describe_reading(report.reading, with_kinds=True)
    parts = [f"# Rollouts of {escape_markdown(Path(report.source).name)}"]
    parts += map(escape_markdown, filter(None, [_state_verdict(report), line]))
    if examples:
        parts.append(_bullets([example.strip() for example in examples]))
    parts += _render_tables(report)
    if changes := list(_compare_ends(report)):
        parts += ["## First and last checkpoint", _bullets(changes)]
    if undefined := list(_explain_undefined(report)):
        parts += ["## What cannot be said", _bullets(undefined)]
    settings = {
        "rollouts": f"{count_noun(report.rollouts, 'rollout')} of {report.source} ({report.format}){left_out}",
        "fields": ", ".join(f"{name} = {column}" for name, column in report.mapping.items()),
        "behaviour": report.behaviour or "no column says what it is",
        "monitors": "; ".join(map(_describe_monitor, report.monitors)) or "none",
    }
    settings_list = _bullets([f"{name}: {text}" for name, text in settings.items()])
    return "\n\n".join([*parts, "## How it was measured", settings_list, NOTE]) + "\n"


def _state_verdict(report: MeasureReport) -> str:
    """How use, disclosure and undetected use changed between the first and the last checkpoint of one run."""
    first, last = report.cells[0], report.cells[-1]
    shown = "reliance" if "reliance" in report.changes else "behaviour"
    sentences = []
    for name, change in report.changes.items():
        is_told = name == shown or name.endswith((".disclosure", ".undetected_use"))
        before, after = (cell.measures[name].value for cell in (first, last))
        if not is_told or before is None or after is None or change.low is None:
            continue
        values = f"from {before:.2f} to {after:.2f} ({change.value:+.2f}, {change.low:+.2f} to {change.high:+.2f})"
        is_shown = change.low > 0 or (change.high or 0) < 0
        verb = (
            ("rose" if (change.value or 0) > 0 else "fell")
            if is_shown
            else "is not shown to change"
        )
        sentences.append(f"{lookup(name).label} {verb} {values}")
    for name, measured in last.measures.items():
        if name.endswith(".disclosure") and measured.value is not None:
            missed = round((1 - measured.value) * measured.n)
            sentences.append(f"{owner_of(name)} now misses {missed:,} of {measured.n:,}")
    if not report.changes or not sentences:
        return ""
    ends = f"Between checkpoint {first.checkpoint} and {last.checkpoint}"
    return (
        f"{ends}: {'; '.join(sentences)}. One run: intervals are over its problems, not over runs."
    )


def _render_tables(report: MeasureReport) -> Iterator[str]:
    """One table with a column per checkpoint and the change; of a single checkpoint, more about each value."""
    for seed in dict.fromkeys(cell.seed for cell in report.cells):
        cells = [cell for cell in report.cells if cell.seed == seed]
        yield (
            f"## seed {seed}"
            if len(cells) < len(report.cells) or not cells[0].checkpoint
            else "## Checkpoints"
        )
        yield escape_markdown("; ".join(map(_describe_cell, cells)))
        names = dict.fromkeys(
            n for cell in cells for n, own in cell.measures.items() if own.value is not None
        )
        columns = ["value", "95 % interval", "null (p)", "ceiling", "rollouts"]
        if len(cells) > 1:
            columns = [*(cell.checkpoint for cell in cells), "change", "last null (p)"]
        rows = []
        for name in names:
            own = [cell.measures.get(name) for cell in cells]
            values = list(_format_measure(own[0])) if own[0] else []
            if len(cells) > 1:
                values = [_format_value(one) for one in own]
                values.append(_format_value(report.changes.get(name), "+.2f"))
                values.append(_format_measure(own[-1])[2] if own[-1] else "")
            rows.append(tuple(map(escape_markdown, (lookup(name).label_with_unit, *values))))
        yield markdown_table(("measure", *map(escape_markdown, columns)), rows)


def _format_value(measured: Measure | None, form: str = ".2f") -> str:
    """A value with its interval, short enough for a column."""
    if measured is None or measured.value is None:
        return ""
    value = f"{measured.value:{form}}"
    if measured.low is None or measured.high is None:
        return value
    between = "…" if form.startswith("+") or measured.low < 0 else "–"
    return f"{value} ({measured.low:{form}}{between}{measured.high:{form}})"


def _bullets(sentences: list[str]) -> str:
    return "\n".join(f"- {' '.join(escape_markdown(sentence).split())}" for sentence in sentences)


def _explain_undefined(report: MeasureReport) -> Iterator[str]:
    """Why measures are undefined: each reason once, with the measures that it concerns."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in report.cells:
        for name, measured in cell.measures.items():
            if measured.value is None:
                reasons.setdefault(measured.undefined, {})[lookup(name).label] = None
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}."


def _compare_ends(report: MeasureReport) -> Iterator[str]:
    """What changed from the first checkpoint to the last, over seeds."""
    ends = report.checkpoints
    compared = {name: c for name, c in report.comparisons.items() if c.effect is not None}
    if report.comparisons and not compared and not report.changes:
        yield (
            f"{ends[0]} and {ends[-1]} share fewer than two seeds: the unit of a claim about training is "
            "the seed, so that the intervals are those of single runs."
        )
    if compared:
        shown = sum(c.shown for c in compared.values())
        smallest = min(c.smallest_p or 1.0 for c in compared.values())
        yield (
            f"{ends[0]} to {ends[-1]}: {shown} of {len(compared)} measures changed, by the seeds that have both "
            f"(with this many seeds, p is at least {smallest:.3g}). Differences over paired seeds: Student's 95 % "
            "interval, exact sign-flip test, Holm's correction over all measures."
        )
    for name, c in compared.items():
        yield (
            f"{lookup(name).label}: {c.effect:+.3f} ({c.low:+.3f} to {c.high:+.3f}) over {c.n} seeds, "
            f"p = {c.p:.4g}, after Holm {c.p_holm:.4g}: {'shown' if c.shown else 'not shown'}."
        )


def _describe_cell(cell: MeasuredCell) -> str:
    checkpoint = f"{cell.checkpoint}: " if cell.checkpoint else ""
    rollouts, problems = count_noun(cell.rollouts, "rollout"), count_noun(cell.problems, "problem")
    if cell.is_sample:
        return f"{checkpoint}a sample of {problems}: of the {rollouts}, at most {MAX_ROLLOUTS:,} are measured"
    return f"{checkpoint}{rollouts} of {problems}"


def _format_measure(measured: Measure) -> tuple[str, ...]:
    between = null = ""
    if measured.low is not None and measured.high is not None:
        between = f"{_format(measured.low)} to {_format(measured.high)}"
    if measured.null is not None and measured.p is not None:
        null = f"{_format(measured.null)} ({measured.p:.4f})"
    ceiling = "" if measured.ceiling is None else _format(measured.ceiling)
    value = _format(measured.value or 0.0)
    return value, between or measured.undefined, null, ceiling, f"{measured.n:,}"


def _format(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _describe_monitor(monitor: Mapping[str, Any]) -> str:
    if "reason" in monitor:
        return f"{monitor['name']}: {monitor['reason']}"
    fitted = f", fitted on {FIT_TENTHS} tenths of the problems" if "threshold" in monitor else ""
    failed = f", failed on {monitor['failed']:,} rollouts" if "failed" in monitor else ""
    kind = monitor.get("kind", "own")
    return f"{monitor['name']} ({kind}, scope {monitor.get('scope', '')}{fitted}{failed})"
