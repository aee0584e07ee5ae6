"""The interface of a tracker, and the description of the run that it gets."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from glasshouse.config.schema import Config
from glasshouse.errors import TrackError, install_command
from glasshouse.files import write_text
from glasshouse.registry import Registry, require_members
from glasshouse.track.step_metrics import MetricKind, StepMetrics

DEFAULT_PROJECT = "glasshouse"
"""The project of all runs, unless the tracker's environment variable names another."""

RunOutcome = Literal["finished", "interrupted", "failed"]
LoggedSteps = Mapping[MetricKind, int]
"""The last step of each kind that a tracker already has; steps up to it are not sent again."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run to track."""

    path: Path
    """The run directory."""
    id: str
    """Identifies the run to all trackers, so that a resumed run continues the same tracker run."""
    name: str
    config: Config

    @property
    def folder(self) -> Path:
        """The folder for a tracker's files."""
        return self.path / "track"


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
    modules={
        name: f"glasshouse.track.{name}" for name in ("mlflow", "tensorboard", "trackio", "wandb")
    },
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


def make_tracked_run(path: Path, config: Config) -> TrackedRun:
    """Describe a run directory; its id is created once and stored in track/id."""
    file = path / "track" / "id"
    if not file.exists():
        write_text(file, uuid.uuid4().hex + "\n")
    return TrackedRun(path, file.read_text().strip(), run_display_name(path), config)


def run_display_name(path: Path) -> str:
    """Name a run by its path below the last folder called `runs`, or by its directory.

    Example: `run_display_name(Path("study/runs/penalty/seed-3"))` gives "penalty-seed-3"
    """
    parts = path.resolve().parts
    last = max((i for i, part in enumerate(parts[:-1]) if part == "runs"), default=len(parts) - 2)
    return "-".join(parts[last + 1 :])
