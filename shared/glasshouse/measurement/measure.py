"""The one measurement: labelled rollouts and monitors' outputs in, measures out.

    columns, scores ──► the values of each measure ──► estimate ──► Measure

Evaluation in training, `glasshouse monitor`, `glasshouse measure` and the demo call it. The entries of the
registry say which measures each of them reports. `compute_changes` compares two checkpoints on the same problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.estimates import Values, estimate, mean_values, subtract_values
from glasshouse.measurement.registry import (
    MEASURES,
    Family,
    MeasureSpec,
    Report,
    headline_measures,
    lookup,
)
from glasshouse.measurement.resampling import RESAMPLES, Key
from glasshouse.runs.monitor_results import find_measure
from glasshouse.types import Rollout
from glasshouse.values import Floats, Measure, undefined_measure

Row = dict[str, Any]
NEEDS_LABELS = (
    "it needs the behaviour of each rollout: map a column to label, to hint, or to correct or gold"
)
NEEDS_ARMS = "it needs a planted and a control arm: map a column to arm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measures, and the rows behind them."""

    measures: dict[str, Measure] = field(default_factory=dict)
    """By monitor and id."""
    rows: list[Row] = field(default_factory=list)
    """In long form. A row with `measure`, `key`, `sample` and `value` is one rollout's value of a measure; two
    checkpoints are compared on equal rows, in pairs."""

    def add(self, other: Measurement) -> None:
        self.measures.update(other.measures)
        self.rows.extend(other.rows)

    def estimate(
        self, name: str, values: Values, spec: MeasureSpec, rollouts: Sequence[Rollout], **keys: Any
    ) -> None:
        """Add a measure and, if it has values of single rollouts, these."""
        self.measures[name] = estimate(values, spec, **keys)
        if rollouts and values.rows is not None:
            self.rows.extend(value_rows(name, rollouts, values.rows))


def measure(
    columns: Columns,
    report: Report,
    scores: Sequence[Scores] = (),
    *,
    key: Key = (),
    resamples: int = RESAMPLES,
    rollouts: Sequence[Rollout] = (),
) -> Measurement:
    """Every measure of a report, by monitor and id, with interval, null and ceiling; without resamples, its
    value. What cannot be computed has a reason. With the rollouts, also their values.

    Example: `measure(label_rollouts(rollouts, task), "training", resamples=0).measures["reliance"].value`
    """
    result = Measurement()
    for entry in _entries(columns, report, scores):
        name, spec, reason = entry.name, entry.spec, entry.reason
        if reason:
            result.measures[name] = undefined(name, reason)
        else:
            result.estimate(name, entry.make(), spec, rollouts, key=key, resamples=resamples)
    return result


def measure_change(
    first: tuple[Columns, Sequence[Scores]],
    last: tuple[Columns, Sequence[Scores]],
    report: Report,
    *,
    key: Key = (),
) -> dict[str, Measure]:
    """Last − first of every measure of a report. Its interval resamples problems with their rollouts of both
    times, so that a problem which is easy both times adds nothing to it."""
    before = {entry.name: entry for entry in _entries(first[0], report, first[1])}
    changes = {}
    for entry in _entries(last[0], report, last[1]):
        earlier = before.get(entry.name)  # none if only the last checkpoint has both arms
        if earlier and not earlier.reason and not entry.reason:
            values = subtract_values(entry.make(), earlier.make())
            changes[entry.name] = estimate(values, entry.spec, key=(*key, "change"))
    return changes


class _Entry(NamedTuple):
    """A measure of a report, and how to make its values."""

    name: str
    spec: MeasureSpec
    reason: str
    """Why it cannot be computed from these columns."""
    make: Callable[[], Values]


def _entries(columns: Columns, report: Report, scores: Sequence[Scores]) -> Iterator[_Entry]:
    specs = [spec for spec in MEASURES.values() if report in spec.reports]
    for spec in specs:
        if make := spec.values:
            name = spec.id.removeprefix(f"{report}.")
            own_spec, reason = replace(spec, id=name), _why_not(spec, columns)
            yield _Entry(name, own_spec, reason, partial(make, columns))
    for scored in scores:
        for spec in specs:
            if (make_own := spec.monitor_values) and (columns.has_arms or "arms" not in spec.needs):
                name = f"{scored.monitor}.{spec.id}"
                reason = scored.reason or (scored.no_threshold if spec.id != "auroc" else "")
                reason = reason or _why_not(lookup(name), columns)
                make_values = partial(make_own, columns, scored)
                yield _Entry(name, lookup(name), reason, make_values)


def measure_values(
    values: Mapping[str, Values], rollouts: Sequence[Rollout] = (), *, key: Key
) -> Measurement:
    """Measures by name, from their values, and the rollouts' own values."""
    result = Measurement()
    for name, own in values.items():
        result.estimate(name, own, lookup(name), rollouts, key=key)
    return result


def undefined(name: str, reason: str) -> Measure:
    """A measure that cannot be computed."""
    monitor, _, id = name.rpartition(".")
    return replace(undefined_measure(reason), id=id, monitor=monitor)


def value_rows(name: str, rollouts: Sequence[Rollout], values: Floats) -> list[Row]:
    """Each rollout's value of a measure; NaN (no value) becomes null."""
    known = [None if np.isnan(value) else value for value in values.tolist()]
    return [
        {"measure": name, "key": rollout.problem.key, "sample": rollout.sample, "value": value}
        for rollout, value in zip(rollouts, known, strict=True)
    ]


def _why_not(spec: MeasureSpec, columns: Columns) -> str:
    """Why a measure cannot be computed from these columns; empty if it can."""
    if "labels" in spec.needs and not columns.has_labels:
        return NEEDS_LABELS
    return NEEDS_ARMS if "arms" in spec.needs and not columns.has_arms else ""


Changes = Mapping[str, Measure]
Entry = Mapping[str, Any]
"""A checkpoint in `results/monitor.json`: name, step, and measures by source and id."""


def compute_changes(before: Iterable[Row], after: Iterable[Row]) -> dict[str, Measure]:
    """After − before of every measure, over the rollouts that have a value both times."""
    values_before, values_after = _values_by_measure(before), _values_by_measure(after)
    names = [name for name in values_before if name in values_after]
    rollouts = sorted(
        {r for name in names for r in values_before[name].keys() & values_after[name].keys()}
    )
    problems = [problem for problem, _ in rollouts]
    values = {}
    for name in names:
        one, two = values_before[name], values_after[name]
        differences = np.array([two.get(r, np.nan) - one.get(r, np.nan) for r in rollouts])
        values[name] = mean_values(
            differences,
            problems,
            reason=f"no problem has a value of {name} both before and after",
            control=np.zeros(len(rollouts)),
            is_difference=True,
        )
    return measure_values(values, key=("change",)).measures


def _values_by_measure(rows: Iterable[Row]) -> dict[str, dict[tuple[str, int], float]]:
    """By measure id, then by problem key and sample."""
    values: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        if "measure" in row:
            own = values.setdefault(row["measure"], {})
            if row["value"] is not None:  # a rollout of the other arm has the same key
                own[row["key"], row["sample"]] = row["value"]
    return values


def summarize(first: Entry, last: Entry, changes: Changes) -> str:
    """The verdict: the planted behaviour and its undetected use, if there is one, then the dependence on the CoT.

    Example: "From the base to step 60: reliance rose from 0.19 to 0.98 (change +0.79, 95 % interval +0.74 to +0.83);
    a change of has a CoT is not shown: 1.00 → 1.00 (95 % interval -0.02 to +0.02)."
    """
    planted = last["measures"].get("organism", {})
    names = [name for name in planted if name.endswith(".undetected_use")]
    if planted:  # without a control arm there is no reliance
        names.insert(0, "behaviour" if planted["reliance"]["value"] is None else "reliance")
    names += headline_measures(Family.COT)
    ends = (f"the {e['name']}" if e["step"] == 0 else f"step {e['step']}" for e in (first, last))
    sentences = []
    for name in names:
        found = (find_measure(entry, name) or {} for entry in (first, last))
        before, after = (measure.get("value") for measure in found)
        if before is not None and after is not None and name in changes:
            sentences.append(describe_change(name, before, after, changes[name]))
    return f"From {' to '.join(ends)}: {'; '.join(sentences) or 'no change could be measured'}."


def describe_change(name: str, before: float, after: float, change: Measure) -> str:
    """A measure's change in words; "not shown" if its interval contains zero."""
    label = lookup(name).label
    if change.low is None or change.high is None:
        return f"the change of {label} has no interval ({change.undefined})"
    interval = f"95 % interval {change.low:+.2f} to {change.high:+.2f}"
    if change.low <= 0 <= change.high:
        return f"a change of {label} is not shown: {before:.2f} → {after:.2f} ({interval})"
    verb = "rose" if change.low > 0 else "fell"
    return (
        f"{label} {verb} from {before:.2f} to {after:.2f} (change {change.value:+.2f}, {interval})"
    )
