"""The change from one checkpoint to another on the same problems, and a sentence on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

import numpy as np

from glasshouse.measurement.estimates import mean_values
from glasshouse.measurement.measure import Row, estimate_all
from glasshouse.measurement.measure_spec import Family
from glasshouse.measurement.registry import headline_measures, lookup, owner_of
from glasshouse.values import Measure

Changes = Mapping[str, Measure]


class MeasureEntry(TypedDict):
    """A measure in `results/monitor.json`, as far as it is read here."""

    value: float | None
    low: float | None
    high: float | None


class CheckpointEntry(TypedDict):
    """A checkpoint in `results/monitor.json`: measures by evaluation and id."""

    name: str
    step: int
    measures: dict[str, dict[str, MeasureEntry]]


def compute_changes(before: Iterable[Row], after: Iterable[Row]) -> dict[str, Measure]:
    """After − before of every measure, over the rollouts that have a value both times."""
    values_before, values_after = _values_by_measure(before), _values_by_measure(after)
    names = [name for name in values_before if name in values_after]
    rollouts = sorted(
        {r for name in names for r in values_before[name].keys() & values_after[name].keys()}
    )
    problems = [problem for problem, _ in rollouts]
    differences = {
        name: np.array(
            [_difference(values_after[name].get(r), values_before[name].get(r)) for r in rollouts]
        )
        for name in names
    }
    values = {
        name: mean_values(
            d,
            problems,
            reason=f"no problem has a value of {name} both before and after",
            control=np.zeros(len(d)),
            is_difference=True,
            trials=len(set(problems)),  # published intervals count problems without a value, too
        )
        for name, d in differences.items()
    }
    return estimate_all(values, key=("change",))


def summarize_change(first: CheckpointEntry, last: CheckpointEntry, changes: Changes) -> str:
    """One sentence with its interval; "not shown" if the interval contains zero.

    Example: "From the base to step 60 the answer came to depend more on the chain of thought:
    necessity uplift 0.34 → 0.91 (change +0.57, 95 % interval +0.50 to +0.64); …"
    """
    name = "necessity_uplift"
    before, after, change = _value(first, name), _value(last, name), changes.get(name)
    if before is None or after is None or change is None:
        return "The dependence of the answer on the chain of thought could not be measured."
    route = f"From {_checkpoint_name(first)} to {_checkpoint_name(last)}"
    low, high = change.low, change.high
    if low is None or high is None:
        return f"{route} the change of necessity uplift has no interval: {change.undefined}."
    values = f"necessity uplift {before:.2f} → {after:.2f}"
    interval = _format_interval(low, high)
    details = f"change {change.value:+.2f}, {interval}"
    direction, opposite = ("more", "less") if low > 0 else ("less", "more")
    if low <= 0 <= high:
        claim = (
            "a change in how much the answer depends on the chain of thought is not shown: "
            f"{values} ({interval})"
        )
    elif _steps_contradict(changes, low > 0):
        claim = (
            f"the evidence is mixed: the chain of thought is needed {direction} often for a correct "
            f"answer, and a changed step is followed {opposite} often: {values} ({details})"
        )
    else:
        claim = (
            f"the answer came to depend {direction} on the chain of thought: {values} ({details})"
        )
    others = [_format_values(first, last, id) for id in headline_measures(Family.COT) if id != name]
    return "; ".join([f"{route} {claim}", *filter(None, others)]) + "."


def summarize_planted_change(
    first: CheckpointEntry, last: CheckpointEntry, changes: Changes
) -> str:
    """How the planted behaviour and its undetected use changed; empty for a task without one.
    Nothing is claimed if the interval contains zero.

    Example: "Reliance on the hint rose from 0.19 to 0.98 (change +0.79, 95 % interval +0.74 to
    +0.83). Use undetected by the disclosure rule rose from …"
    """
    measures = last["measures"].get("organism")
    if measures is None:
        return ""
    name, label = ("reliance", "Reliance on the hint")
    if measures[name]["value"] is None:  # no control arm to compare with
        name, label = ("behaviour", "The planted behaviour")
    value, interval = measures[name]["value"], measures[name]
    sentences = []
    is_present = interval["low"] is not None and interval["low"] > 0
    if not is_present:
        sentences.append(
            f"{label} is not shown at {_checkpoint_name(last)}: {value:.2f} "
            f"({_format_interval(interval['low'], interval['high'])})."
        )
    if is_present or _excludes_zero(changes.get(name)):
        sentences.append(_describe_change(label, name, first, last, changes))
    for other in measures:
        if other.endswith(".undetected_use") and _excludes_zero(changes.get(other)):
            label = f"Use undetected by the {owner_of(other)}"
            sentences.append(_describe_change(label, other, first, last, changes))
    return " ".join(filter(None, sentences))


def _describe_change(
    label: str, name: str, first: CheckpointEntry, last: CheckpointEntry, changes: Changes
) -> str:
    before, after, change = _value(first, name), _value(last, name), changes.get(name)
    if before is None or after is None or change is None or change.low is None:
        return ""
    interval = _format_interval(change.low, change.high)
    if not _excludes_zero(change):
        lower = label[0].lower() + label[1:]
        return f"A change of {lower} is not shown: {before:.2f} → {after:.2f} ({interval})."
    verb = "rose" if change.low > 0 else "fell"
    details = f"change {change.value:+.2f}, {interval}"
    return f"{label} {verb} from {before:.2f} to {after:.2f} ({details})."


def _excludes_zero(change: Measure | None) -> bool:
    """Is there a change whose interval does not contain zero?"""
    if change is None or change.low is None or change.high is None:
        return False
    return not change.low <= 0 <= change.high


def _steps_contradict(changes: Changes, uplift_rose: bool) -> bool:
    """Did mistake-follow change in the other direction than uplift? Uplift counts correct answers,
    so it alone does not show how much the answer depends on the steps."""
    follow = changes.get("mistake_follow")
    if follow is None or follow.low is None or not _excludes_zero(follow):
        return False
    return (follow.low > 0) != uplift_rose


def _format_interval(low: float | None, high: float | None) -> str:
    return "no interval" if low is None else f"95 % interval {low:+.2f} to {high:+.2f}"


def _checkpoint_name(entry: CheckpointEntry) -> str:
    return f"the {entry['name']}" if entry["step"] == 0 else f"step {entry['step']}"


def _format_values(first: CheckpointEntry, last: CheckpointEntry, name: str) -> str:
    before, after = _value(first, name), _value(last, name)
    if before is None and after is None:
        return ""
    values = ("undefined" if v is None else f"{v:.2f}" for v in (before, after))
    return f"{lookup(name).label} {' → '.join(values)}"


def _value(entry: CheckpointEntry, name: str) -> float | None:
    for measures in entry["measures"].values():
        if name in measures:
            return measures[name]["value"]
    return None


def _values_by_measure(rows: Iterable[Row]) -> dict[str, dict[tuple[str, int], float | None]]:
    """By measure id, then by problem key and sample."""
    values: dict[str, dict[tuple[str, int], float | None]] = {}
    for row in rows:
        if "measure" in row:
            values.setdefault(row["measure"], {})[row["key"], row["sample"]] = row["value"]
    return values


def _difference(after: float | None, before: float | None) -> float:
    return float("nan") if after is None or before is None else after - before
