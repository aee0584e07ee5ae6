"""The one measurement: labelled rollouts and monitors' outputs in, measures out.

    columns, scores ──► the values of each measure ──► estimate ──► Measure

Evaluation in training, `glasshouse monitor`, `glasshouse measure` and the demo call it. The entries of the
registry say which measures each of them reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.estimates import Values, estimate
from glasshouse.measurement.measures import MeasureSpec, Report
from glasshouse.measurement.registry import MEASURES, lookup, monitor_stream
from glasshouse.measurement.resampling import RESAMPLES, Key
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

    def add(
        name: str, spec: MeasureSpec, key: Key, reason: str, make: Callable[[], Values]
    ) -> None:
        reason = reason or _why_not(spec, columns)
        if reason:
            result.measures[name] = undefined(name, reason)
            return
        values = make()
        result.measures[name] = estimate(values, spec, key=key, resamples=resamples)
        if rollouts and values.rows is not None:
            result.rows.extend(value_rows(name, rollouts, values.rows))

    specs = [spec for spec in MEASURES.values() if report in spec.reports]
    for spec in specs:
        if make := spec.values:
            name = spec.id.removeprefix(f"{report}.")
            add(name, replace(spec, id=name), key, "", partial(make, columns))
    for scored in scores:
        own = monitor_stream(scored.monitor) if report == "monitors" else "monitor"
        for spec in specs:
            if (make_own := spec.monitor_values) and (columns.has_arms or "arms" not in spec.needs):
                name = f"{scored.monitor}.{spec.id}"
                reason = scored.reason or (scored.no_threshold if spec.id != "auroc" else "")
                add(name, lookup(name), (*key, own), reason, partial(make_own, columns, scored))
    return result


def measure_values(
    values: Mapping[str, Values],
    rollouts: Sequence[Rollout] = (),
    *,
    key: Key,
    null_key: Key | None = None,
) -> Measurement:
    """Measures by name, from their values, and the rollouts' own values."""
    result = Measurement()
    null_key = key if null_key is None else null_key
    for name, own in values.items():
        result.measures[name] = estimate(own, lookup(name), key=key, null_key=null_key)
        if rollouts and own.rows is not None:
            result.rows.extend(value_rows(name, rollouts, own.rows))
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
