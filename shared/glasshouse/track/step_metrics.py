"""What trackers receive: the numbers of one step, flattened from a line of the run directory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from glasshouse.runs.run_directory import load_evaluations, load_metrics

MetricKind = Literal["train", "evaluate"]
METRIC_KINDS: tuple[MetricKind, ...] = ("train", "evaluate")


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The numbers of one training step or of one evaluation.

    Example: `StepMetrics("train", 3, 1760000000.0, {"train/step": 3, "train/reward": 0.5})`
    """

    kind: MetricKind
    step: int
    time: float
    """Seconds since the epoch."""
    values: dict[str, float]
    """Numbers by name; each name begins with the kind."""


def metrics_from_step(row: Mapping[str, Any]) -> StepMetrics:
    """Convert a line of metrics.jsonl."""
    values = flatten_numbers("train", row)
    return StepMetrics("train", row["step"], _to_seconds(row["timing"]["time"]), values)


def metrics_from_evaluation(event: Mapping[str, Any]) -> StepMetrics:
    """Convert an evaluation's line of events.jsonl."""
    values = flatten_numbers("evaluate", event)
    return StepMetrics("evaluate", event["step"], _to_seconds(event["time"]), values)


def read_step_metrics(run: Path) -> Iterator[StepMetrics]:
    """Yield all metrics of a run directory in the order of the steps.

    Resuming truncates the metrics to the checkpoint but keeps events. Evaluations of steps after
    the last line of metrics are therefore left out.
    """
    evaluations = {row["step"]: row for row in load_evaluations(run)}
    if 0 in evaluations:
        yield metrics_from_evaluation(evaluations[0])
    for row in load_metrics(run):
        yield metrics_from_step(row)
        if row["step"] in evaluations:
            yield metrics_from_evaluation(evaluations[row["step"]])


def flatten_numbers(prefix: str, tree: Mapping[str, Any]) -> dict[str, float]:
    """Flatten a tree to its finite numbers, named by their paths.

    Example: `flatten_numbers("train", {"loss": 0.5, "timing": {"learn": 2}})` gives
    `{"train/loss": 0.5, "train/timing/learn": 2}`
    """
    numbers: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            numbers |= flatten_numbers(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            numbers[f"{prefix}/{name}"] = value
    return numbers


def _to_seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
