"""What a tracker is told: flat numbers of a step, made from the lines of the run directory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from glasshouse.store.run_directory import evaluations_of, metrics_of

Kind = Literal["train", "evaluate"]
KINDS: tuple[Kind, ...] = ("train", "evaluate")


@dataclass(frozen=True, slots=True)
class Record:
    """The numbers of one training step, or of one evaluation.

    Example: `Record("train", 3, 1760000000.0, {"train/step": 3, "train/reward": 0.5})`
    """

    kind: Kind
    step: int
    """The global step."""
    time: float
    """When it happened, in seconds since 1970."""
    numbers: dict[str, float]
    """By name; each begins with the kind."""


def trained(row: Mapping[str, Any]) -> Record:
    """A line of metrics.jsonl."""
    return Record("train", row["step"], _seconds(row["timing"]["time"]), flat("train", row))


def evaluated(event: Mapping[str, Any]) -> Record:
    """An evaluation's line of events.jsonl."""
    return Record("evaluate", event["step"], _seconds(event["time"]), flat("evaluate", event))


def records(run: Path) -> Iterator[Record]:
    """All that a run directory holds, in the order in which it happened.

    A run that goes on has its metrics cut back to its checkpoint while its events stay: evaluations
    of later steps are not of this record.
    """
    evaluations = {row["step"]: row for row in evaluations_of(run)}
    if 0 in evaluations:
        yield evaluated(evaluations[0])
    for row in metrics_of(run):
        yield trained(row)
        if row["step"] in evaluations:
            yield evaluated(evaluations[row["step"]])


def flat(prefix: str, tree: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a tree by their path; texts, and what is not finite, are left out.

    Example: `flat("train", {"loss": 0.5, "timing": {"learn": 2}})` gives
    `{"train/loss": 0.5, "train/timing/learn": 2}`
    """
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and math.isfinite(value):
            found[f"{prefix}/{name}"] = value
    return found


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
