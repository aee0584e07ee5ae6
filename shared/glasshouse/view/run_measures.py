"""The measures of a run over steps, and the sentence that sums them up: of its own evaluations, of its training
steps, and of `glasshouse monitor` or `measure`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from glasshouse.config.loading import flatten_keys
from glasshouse.measurement.intervals import difference_interval
from glasshouse.measurement.registry import MEASURES, Family, lookup, sort_measures
from glasshouse.runs.rows import Row

Item = TypeVar("Item")
SCORES = ("pass_at_1", "accuracy", "strict", "format", "sampled_length", "length")
"""Of an evaluation, beside its pass@k. Sampled accuracy is shown first, as everywhere in the project."""


def describe_evaluation(event: Row) -> str:
    """Example: `accuracy, sampled 0.750; accuracy, greedy 0.965`"""
    known = [(id, finite(event.get(id))) for id in SCORES[:2]]
    return "; ".join(f"{lookup(id).label} {value:.3f}" for id, value in known if value is not None)


def collect_measures(
    evaluations: Sequence[Row], monitor: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Every measure over steps, with its label, unit, bounds and sentence: of the run's own evaluations; and of
    `glasshouse monitor` or `measure`, with the change from the first to the last checkpoint. If both have a measure,
    the one with fewer points has no panel.

    Example: `collect_measures(rows, None)["pass_at_1"]["points"][-1]["value"]`
    """
    found: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        for id, point in _evaluated_points(evaluation):
            own = found.setdefault(id, {**describe_measure(id), "points": []})
            own["points"].append({"step": evaluation["step"], **point})
    changes = ((monitor or {}).get("change") or {}).get("measures", {})
    for checkpoint in (monitor or {}).get("checkpoints", []):
        for source, measures in checkpoint["measures"].items():
            for name, measured in measures.items():
                id = f"{source}.{name}" if source else name
                change = describe_value(changes[name]) if name in changes else None
                of_file = f"file.{name}" if not source and f"file.{name}" in MEASURES else id
                spec = {**describe_measure(of_file), "points": [], "change": change}
                point = {"step": checkpoint["step"], **describe_value(measured)}
                found.setdefault(id, spec)["points"].append(point)
    for id, measure in found.items():
        other = found.get(id.removeprefix("organism."), measure)
        if other is not measure:
            fewer = min(other, measure, key=lambda m: len(m["points"]))
            fewer["family"] = Family.NONE
    return {id: found[id] for id in sort_measures(found)}


def _evaluated_points(evaluation: Row) -> Iterator[tuple[str, dict[str, float | None]]]:
    """(measure, its point) of an evaluation: accuracies, format and lengths, then an organism's measures."""
    sampled = (id for id in evaluation if re.fullmatch(r"pass_at_\d{1,6}", id))
    for id in dict.fromkeys((*SCORES, *sampled)):
        if id in evaluation:
            low, high = evaluation.get(f"{id}_low"), evaluation.get(f"{id}_high")
            yield id, describe_value({"value": evaluation[id], "low": low, "high": high})
    organism, intervals = evaluation.get("organism"), evaluation.get("organism_intervals")
    for id, value in flatten_keys(organism) if isinstance(organism, dict) else ():
        if id != "rollouts" and (value is None or isinstance(value, int | float)):
            low, high = (
                intervals.get(id, (None, None)) if isinstance(intervals, dict) else (None, None)
            )
            yield id, describe_value({"value": value, "low": low, "high": high})


def metric_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Metrics by column, with the seconds of each phase as `seconds_<phase>`; and what is known about those
    that the page draws."""
    flat = [_flatten_metrics(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    known = [id for id in sort_measures(f"train.{name}" for name in names) if lookup(id).family]
    return {
        "steps": [row["step"] for row in rows],
        "columns": {name: [row.get(name) for row in flat] for name in names},
        "measures": {id.removeprefix("train."): describe_measure(id) for id in known},
    }


def _flatten_metrics(row: Row) -> dict[str, float | None]:
    values = {
        name: finite(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float)
    }
    timing = row.get("timing")
    for name, value in timing.items() if isinstance(timing, dict) else ():
        if isinstance(value, int | float):
            values[name if "_" in name else f"seconds_{name}"] = finite(value)
    return values


def find_headlines(measures: Mapping[str, Mapping[str, Any]]) -> tuple[str | None, str | None]:
    """The accuracy and the measure of monitorability that a page states first: the first headline measures of the
    registry that have a panel."""
    ranked = sorted(
        (lookup(id).headline, id)
        for id, measure in measures.items()
        if lookup(id).headline and measure["family"]
    )
    by_kind: dict[bool, str] = {}
    for _, id in ranked:
        by_kind.setdefault(lookup(id).family == Family.ACCURACY, id)
    return by_kind.get(True), by_kind.get(False)


def summarize_run(measures: Mapping[str, Mapping[str, Any]], status: str) -> str:
    """How accuracy and monitorability changed from the first evaluation to the last.

    Example: "Held-out accuracy, sampled rose from 0.343 to 0.903 (95 % interval +0.52 to +0.60)."
    """
    told = [measures[id] for id in find_headlines(measures) if id]
    steps = [m["points"][-1]["step"] for m in told]
    sentences = [describe_change(m) for m in told]
    is_partial = status in ("running", "interrupted", "failed")
    prefix = [f"Up to step {max(steps)}:"] if is_partial and max(steps, default=0) else []
    return " ".join([*prefix, *sentences])


def describe_change(measure: Mapping[str, Any]) -> str:
    """From the first to the last point: the change with its 95 % interval, or that none is shown."""
    label = f"{'held-out ' if measure['family'] == Family.ACCURACY else ''}{measure['label']}"
    label = f"{label[0].upper()}{label[1:]}"
    known = [point for point in measure["points"] if point["value"] is not None]
    if not known:
        return f"{label} is undefined."
    first, last = ((p["value"], p["low"], p["high"]) for p in (known[0], known[-1]))
    if len(known) == 1:
        return f"{label} is {format_estimate(*first)} at step {known[0]['step']}."
    change = measure.get("change") or {}
    low, high = change.get("low"), change.get("high")
    if low is None and None not in (*first, *last):
        low, high = difference_interval(last, first)
    if low is None or high is None:
        return f"{label}: {first[0]:.3f} → {last[0]:.3f}."
    ends = f"{first[0]:.3f} to {last[0]:.3f}"
    interval = f"(95 % interval {low:+.2f} to {high:+.2f})".replace("-", "−")
    if low <= 0 <= high:
        return f"{label}: no change is shown, {ends} {interval}."
    return f"{label} {'rose' if low > 0 else 'fell'} from {ends} {interval}."


def format_estimate(value: float, low: float | None, high: float | None) -> str:
    """Example: `0.040 (0.02 to 0.07)`"""
    return f"{value:.3f}" + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f})")


def describe_value(measured: Mapping[str, Any]) -> dict[str, Any]:
    """A measure of monitor.json with its interval, null and ceiling; None where it has none."""
    names = ("value", "low", "high", "null", "p", "ceiling", "n")
    return {name: finite(measured.get(name)) for name in names}


def describe_measure(id: str) -> dict[str, Any]:
    names = ("label", "unit", "bounds", "sentence", "family", "detail")
    return {name: getattr(lookup(id), name) for name in names}


def finite(value: Any) -> float | None:
    """The number, or None if it is missing or not finite: JSON has no NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def thin(items: Sequence[Item], limit: int) -> list[Item]:
    """At most `limit` evenly spaced items, with the first and the last.

    Example: `thin([1, 2, 3, 4, 5], 3)` is [1, 3, 5].
    """
    if len(items) <= limit:
        return list(items)
    places = {round(place * (len(items) - 1) / (limit - 1)) for place in range(limit)}
    return [items[place] for place in sorted(places)]
