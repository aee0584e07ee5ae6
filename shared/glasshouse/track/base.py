"""What a tracker is, the numbers that it receives, and the run that it tracks."""

from __future__ import annotations

import importlib.util
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from glasshouse.config.schema import Config
from glasshouse.errors import TrackError, install_command
from glasshouse.files import write_text
from glasshouse.registry import Registry, require_members
from glasshouse.runs.run_directory import load_evaluations, load_metrics

RunOutcome = Literal["finished", "interrupted", "failed"]
MetricKind = Literal["train", "evaluate"]
METRIC_KINDS: tuple[MetricKind, ...] = ("train", "evaluate")
LoggedSteps = Mapping[MetricKind, int]
"""The last step of each kind that a tracker already has; steps up to it are not sent again."""


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


def make_metrics(kind: MetricKind, row: Mapping[str, Any]) -> StepMetrics:
    """Convert a line of metrics.jsonl (`train`) or an evaluation's line of events.jsonl (`evaluate`)."""
    time = row["timing"]["time"] if kind == "train" else row["time"]
    seconds = datetime.fromisoformat(time).timestamp()
    return StepMetrics(kind, row["step"], seconds, flatten_numbers(kind, row))


def read_step_metrics(run: Path) -> Iterator[StepMetrics]:
    """Yield all metrics of a run directory in the order of the steps.

    Resuming truncates the metrics to the checkpoint but keeps events. Evaluations of steps after
    the last line of metrics are therefore left out.
    """
    evaluations = {row["step"]: row for row in load_evaluations(run)}
    if 0 in evaluations:
        yield make_metrics("evaluate", evaluations[0])
    for row in load_metrics(run):
        yield make_metrics("train", row)
        if row["step"] in evaluations:
            yield make_metrics("evaluate", evaluations[row["step"]])


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


class TrackedRun:
    """The run to track."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        self.folder = path / "track"
        """For the files of trackers."""
        self.name = run_display_name(path)
        file = self.folder / "id"
        if not file.exists():
            write_text(file, uuid.uuid4().hex + "\n")
        self.id = file.read_text().strip()
        """Identifies the run to all trackers: a resumed run continues the same tracker run."""


def run_display_name(path: Path) -> str:
    """Name a run by its path below the last folder called `runs`, or by its directory.

    Example: `run_display_name(Path("study/runs/penalty/seed-3"))` gives "penalty-seed-3"
    """
    parts = path.resolve().parts
    last = max((i for i, part in enumerate(parts[:-1]) if part == "runs"), default=len(parts) - 2)
    return "-".join(parts[last + 1 :])


class Tracker(Protocol):
    """One tracker. An exception drops the tracker; it never stops a run that is training."""

    url: str
    """The URL or command that shows the tracked run; set by `start`."""

    def start(self, run: TrackedRun) -> LoggedSteps:
        """Create or resume the tracker run; returns the steps that the tracker already has."""
        ...

    def log(self, metrics: StepMetrics) -> None:
        """Log the metrics of one step, and flush them as soon as possible."""
        ...

    def finish(self, summary: Mapping[str, float], outcome: RunOutcome) -> None:
        """Log the run's summary and outcome. When this returns, everything logged is saved."""
        ...


tracker: Registry[Any] = Registry(
    "tracker",
    "trackers",
    key="trackers",
    modules=dict.fromkeys(
        ("mlflow", "tensorboard", "trackio", "wandb"), "glasshouse.track.libraries"
    ),
    check=require_members(
        "tracker", ("start", "log", "finish"), "glasshouse/track/base.py", TrackError
    ),
)
"""Trackers by name: `@tracker("csv")` above `class CsvTracker`, then `trackers: [csv]`. A built-in one
has the name of the library that it needs."""


def validate_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker is unknown or its library is not installed."""
    for name in names:
        tracker.check_name(name)
        if name in tracker.modules and importlib.util.find_spec(name) is None:
            raise TrackError(
                f"trackers: {name} needs {name}, which is not installed: {install_command(name)}"
            )
