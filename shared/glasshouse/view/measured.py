"""The results of `glasshouse measure` in the form of `monitor.json`, so that the terminal and the page show both alike,
and the sentences about them: what changed, what cannot be said, how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glasshouse.measurement.file import (
    FIT_TENTHS,
    MAX_ROLLOUTS,
    WRONG_ANSWER,
    MeasuredCell,
    MeasureReport,
)
from glasshouse.measurement.measure import describe_change
from glasshouse.measurement.reading import describe_reading
from glasshouse.measurement.registry import lookup, owner_of
from glasshouse.monitors.base import describe_cost
from glasshouse.terminal import count_noun

NOTE = (
    "Intervals: cluster bootstrap over problems. Null: the same flags permuted among problems, with one-sided p. "
    "Ceiling: the best possible value; for g-mean², the best that flagging at random reaches. "
    "docs/measure.md defines every measure."
)


def summarize_measures(report: MeasureReport) -> dict[str, Any]:
    """Checkpoints with their measures, changes, the verdict, and what else is said about them.

    Example: `summarize_measures(measure("rollouts.jsonl"))["verdict"]`
    """
    left_out = f", {report.unanswered:,} without an answer left out" if report.unanswered else ""
    seeds = {cell.seed for cell in report.cells}
    checkpoints: dict[str, dict[str, Any]] = {}
    for cell in report.cells:
        entry = checkpoints.setdefault(cell.checkpoint, {"measures": {"": {}}})
        prefix = f"seed {cell.seed}." if len(seeds) > 1 else ""
        defined = {name: own for name, own in cell.measures.items() if own.value is not None}
        entry["measures"][""] |= {f"{prefix}{n}": own.as_dict() for n, own in defined.items()}
    for place, (name, entry) in enumerate(checkpoints.items()):
        step = name.partition("–")[0]
        entry |= {"name": name, "step": int(step) if step.isascii() and step.isdigit() else place}
    settings = {
        "rollouts": f"{count_noun(report.rollouts, 'rollout')} of {report.source} ({report.format}){left_out}",
        "checkpoints": "; ".join(map(_describe_cell, report.cells)),
        "fields": ", ".join(f"{name} = {column}" for name, column in report.mapping.items()),
        "behaviour": report.behaviour or "no column says what it is",
        "monitors": "; ".join(map(_describe_monitor, report.monitors)) or "none",
        "method": NOTE,
    }
    return {
        "title": f"Rollouts of {Path(report.source).name}",
        "rollouts": report.rollouts,
        "checkpoints": list(checkpoints.values()),
        "change": {"measures": {name: own.as_dict() for name, own in report.changes.items()}},
        "verdict": _state_verdict(report),
        "said": [*describe_reading(report.reading, with_kinds=True), *_compare_ends(report)],
        "unsaid": list(_explain_undefined(report)),
        "settings": settings,
    }


def _state_verdict(report: MeasureReport) -> str:
    """How use, disclosure and undetected use changed between the first and the last checkpoint of one run; of a file
    that names no behaviour, the accuracy."""
    first, last = report.cells[0], report.cells[-1]
    shown = "rollout_accuracy" if report.behaviour == WRONG_ANSWER else "behaviour"
    shown = "reliance" if "reliance" in report.changes else shown
    sentences = []
    for name, change in report.changes.items():
        is_told = name == shown or name.endswith((".disclosure", ".undetected_use"))
        before, after = (cell.measures[name].value for cell in (first, last))
        if is_told and before is not None and after is not None:
            sentences.append(describe_change(name, before, after, change))
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


def _explain_undefined(report: MeasureReport) -> Iterator[str]:
    """Why measures are undefined: each reason once, with the measures that it concerns."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in report.cells:
        for name, measured in cell.measures.items():
            if measured.value is None:
                reasons.setdefault(measured.undefined, {})[lookup(name).label] = None
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}."
    if report.format == "glasshouse" and report.behaviour == WRONG_ANSWER:
        yield (
            "a planted behaviour: these rows are read like those of any trainer, training and evaluations together. "
            "glasshouse monitor RUN knows the labels and measures all checkpoints on the same problems."
        )


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


def _describe_monitor(monitor: Mapping[str, Any]) -> str:
    if "reason" in monitor:
        return f"{monitor['name']}: {monitor['reason']}"
    is_fitted = "threshold" in monitor and monitor["kind"] != "judge"
    fitted = f", fitted on {FIT_TENTHS} tenths of the problems" if is_fitted else ""
    cost = f", {describe_cost(monitor)}" if "seconds_per_verdict" in monitor else ""
    failed = f", failed on {monitor['failed']:,} rollouts" if "failed" in monitor else ""
    kind = monitor.get("kind", "own")
    return f"{monitor['name']} ({kind}, scope {monitor.get('scope', '')}{fitted}{failed}{cost})"
