"""What a tracker is, and how a run's metrics reach it in the background: the run never waits for a tracker.

run ──► Trackers.log(metrics) ──► one queue per tracker ──► one thread per tracker ──► Tracker.log
                                                                  │ raises
run ◄── reported once, at the next metrics ◄──────────────────────┘
"""

from __future__ import annotations

import importlib.util
import io
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from glasshouse.config.schema import Config
from glasshouse.errors import TrackError, install_command
from glasshouse.files import write_text
from glasshouse.registry import Registry, import_modules, require_members
from glasshouse.runs.run_directory import (
    acquire_lock,
    load_evaluations,
    load_metrics,
    load_summary,
    load_verified_config,
)
from glasshouse.runs.verify import name_curve_damage
from glasshouse.terminal import shell_command

RunOutcome = Literal["finished", "interrupted", "failed"]
MetricKind = Literal["train", "evaluate"]
METRIC_KINDS: tuple[MetricKind, ...] = ("train", "evaluate")
LoggedSteps = Mapping[MetricKind, int]
"""The last step of each kind that a tracker already has; steps up to it are not sent again."""


class StepMetrics(NamedTuple):
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
        "tracker", ("start", "log", "finish"), "glasshouse/track/trackers.py", TrackError
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


FINISH_TIMEOUT = 15.0
"""Seconds that the end of a run waits for its trackers."""

LogEvent = Callable[..., None]
"""Called with the kind of an event and its fields, like `RunDirectory.log_event`."""


class TrackerThread(threading.Thread):
    """Calls one tracker, in its own thread."""

    def __init__(self, name: str, tracker: Tracker, logged: LoggedSteps) -> None:
        super().__init__(name=name, daemon=True)
        self.tracker, self.last_steps, self.error = tracker, dict(logged), ""
        self.calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        try:
            while call := self.calls.get():
                call()
        except Exception as error:
            self.error = _first_line(error)


class Trackers:
    """All trackers of a run; without any, every method does nothing.

    Example: `with start_trackers(["trackio"], path, config, log_event) as trackers: trackers.log(…)`
    """

    def __init__(self, path: Path, log_event: LogEvent) -> None:
        self.path, self.log_event = path, log_event
        self.threads: list[TrackerThread] = []

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *error: object) -> None:
        self.finish({}, "failed")

    @property
    def urls(self) -> dict[str, str]:
        """The URL or command that shows the run, by tracker."""
        return {thread.name: thread.tracker.url for thread in self.threads}

    def log(self, metrics: StepMetrics) -> None:
        """Queue metrics for every tracker that has not failed and does not have the step yet: a repeated step has
        the same numbers."""
        self._drop_failed()
        for thread in self.threads:
            if metrics.step > thread.last_steps.get(metrics.kind, -1):
                thread.last_steps[metrics.kind] = metrics.step
                thread.calls.put(partial(thread.tracker.log, metrics))

    def finish(
        self, summary: Mapping[str, Any], outcome: RunOutcome, timeout: float = FINISH_TIMEOUT
    ) -> None:
        """Finish all trackers and wait for them; a second call does nothing."""
        numbers = flatten_numbers("summary", summary)
        for thread in self.threads:
            thread.calls.put(partial(thread.tracker.finish, numbers, outcome))
            thread.calls.put(None)
        deadline = time.monotonic() + timeout
        with redirect_stdout(io.StringIO()):  # some trackers print when they finish
            for thread in self.threads:
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    thread.error = "it did not finish in time"
        self._drop_failed()
        self.threads = []

    def _drop_failed(self) -> None:
        for thread in [thread for thread in self.threads if thread.error]:
            self.threads.remove(thread)
            command = ["glasshouse", "report", "track", str(self.path), "--to", thread.name]
            self.log_event(
                "tracker_failed",
                tracker=thread.name,
                text=f"The tracker {thread.name} failed: {thread.error}. The run continues without "
                f"it. Upload the rest later with: {shell_command(command)}",
            )


def start_trackers(
    names: Sequence[str], path: Path, config: Config, log_event: LogEvent
) -> Trackers:
    """Start the trackers and send what the run directory already holds."""
    trackers = Trackers(path, log_event)
    if not names:
        return trackers
    run = TrackedRun(path, config)
    for name in dict.fromkeys(names):
        try:
            part = tracker.get(name)()
            trackers.threads.append(TrackerThread(name, part, part.start(run)))
        except Exception as error:
            trackers.finish({}, "failed")
            raise TrackError(
                f"The tracker {name} could not start: {_first_line(error)}. See docs/runs.md for "
                "what it needs, or train without it: trackers=[]."
            ) from error
    for metrics in read_step_metrics(path):
        if metrics.kind == "evaluate" or config.logs_step(metrics.step):
            trackers.log(metrics)
    return trackers


def upload_run(
    path: str | Path, trackers: Sequence[str], warn: Callable[[str], None] = lambda message: None
) -> dict[str, str]:
    """Send what the trackers do not have yet of a finished or interrupted run; returns the URL or command
    that shows each.

    Example: `upload_run("runs/try", ["tensorboard"])`
    """
    path, failures = Path(path), list[str]()
    config, damage = load_verified_config(path)
    for item in damage:
        warn(str(item))
    name_curve_damage(path, warn)
    import_modules(config.imports)  # they may register trackers
    validate_trackers(trackers)
    with acquire_lock(path):
        started = start_trackers(
            trackers, path, config, lambda kind, text, **_: failures.append(text)
        )
        urls, summary = started.urls, load_summary(path) or {}
        outcome: RunOutcome = "finished" if "after" in summary else "interrupted"
        started.finish(summary, outcome, timeout=threading.TIMEOUT_MAX)
    if failures:
        raise TrackError("\n".join(failures))
    return urls


def _first_line(error: Exception) -> str:
    """The first line of an error's message, or else its type."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
