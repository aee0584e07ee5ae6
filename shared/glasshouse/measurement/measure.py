"""The one measurement: labelled rollouts and monitors' outputs in, measures out.

    columns, scores ──► the values of each measure ──► estimate ──► Measure

Evaluation in training, `glasshouse monitor`, `glasshouse measure` and the demo call it. The entries of the
registry say which measures each of them reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from glasshouse.measurement.bootstrap import RESAMPLES
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.estimates import Key, Values, estimate
from glasshouse.measurement.measure_spec import MeasureSpec, Report
from glasshouse.measurement.registry import MEASURES, lookup, monitor_stream
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

    measures: Mapping[str, Measure]
    """By monitor and id."""
    rows: Sequence[Row] = field(default_factory=list)
    """In long form. A row with `measure`, `key`, `sample` and `value` is one rollout's value of a measure; two
    checkpoints are compared on equal rows, in pairs."""


def measure(
    columns: Columns,
    report: Report,
    scores: Sequence[Scores] = (),
    *,
    key: Key = (),
    resamples: int = RESAMPLES,
) -> dict[str, Measure]:
    """Every measure of a report, by monitor and id, with interval, null and ceiling; without resamples, its
    value. What cannot be computed has a reason.

    Example: `measure(label_rollouts(rollouts, task), "training", resamples=0)["reliance"].value`
    """
    specs = [spec for spec in MEASURES.values() if report in spec.reports]
    measures: dict[str, Measure] = {}
    for spec in specs:
        if spec.values:
            name = spec.id.removeprefix(f"{report}.")
            reason = _why_not(spec, columns)
            measures[name] = (
                undefined(name, reason)
                if reason
                else estimate(
                    spec.values(columns), replace(spec, id=name), key=key, resamples=resamples
                )
            )
    for scored in scores:
        own = monitor_stream(scored.monitor) if report == "monitors" else "monitor"
        for spec in specs:
            if spec.monitor_values and (columns.has_arms or "arms" not in spec.needs):
                name = f"{scored.monitor}.{spec.id}"
                reason = scored.reason or _why_not(spec, columns)
                if spec.id != "auroc":
                    reason = reason or scored.no_threshold
                measures[name] = (
                    undefined(name, reason)
                    if reason
                    else estimate(
                        spec.monitor_values(columns, scored),
                        lookup(name),
                        key=(*key, own),
                        resamples=resamples,
                    )
                )
    return measures


def estimate_all(
    values: Mapping[str, Values], *, key: Key, null_key: Key | None = None
) -> dict[str, Measure]:
    """Measures by name, from their values."""
    null_key = key if null_key is None else null_key
    return {n: estimate(v, lookup(n), key=key, null_key=null_key) for n, v in values.items()}


def undefined(name: str, reason: str) -> Measure:
    """A measure that cannot be computed."""
    monitor, _, id = name.rpartition(".")
    return replace(undefined_measure(reason), id=id, monitor=monitor)


def contribution_rows(name: str, rollouts: Sequence[Rollout], values: Floats) -> Iterator[Row]:
    """Each rollout's value of a measure; NaN (no value) becomes null."""
    for rollout, value in zip(rollouts, values.tolist(), strict=True):
        known = None if np.isnan(value) else float(value)
        place = {"key": rollout.problem.key, "sample": rollout.sample}
        yield {"measure": name, **place, "value": known}


def value_rows(values: Mapping[str, Values], rollouts: Sequence[Rollout]) -> list[Row]:
    """Each rollout's value of every measure that is a mean of them."""
    return [
        row
        for name, v in values.items()
        if v.rows is not None
        for row in contribution_rows(name, rollouts, v.rows)
    ]


def _why_not(spec: MeasureSpec, columns: Columns) -> str:
    """Why a measure cannot be computed from these columns; empty if it can."""
    if "labels" in spec.needs and not columns.has_labels:
        return NEEDS_LABELS
    return NEEDS_ARMS if "arms" in spec.needs and not columns.has_arms else ""
