"""Send a run's metrics to its trackers in the background: the run never waits for a tracker.

run ──► Trackers.log(metrics) ──► one queue per tracker ──► one thread per tracker ──► Tracker.log
                                                                  │ raises
run ◄── reported once, at the next metrics ◄──────────────────────┘
"""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.errors import TrackError
from glasshouse.registry import import_modules
from glasshouse.runs.run_config import load_verified_config
from glasshouse.runs.run_directory import acquire_lock, load_summary
from glasshouse.runs.verify import name_curve_damage
from glasshouse.terminal import shell_command
from glasshouse.track.base import (
    LoggedSteps,
    RunOutcome,
    StepMetrics,
    TrackedRun,
    Tracker,
    flatten_numbers,
    read_step_metrics,
    validate_trackers,
)
from glasshouse.track.base import tracker as registered

FINISH_TIMEOUT = 15.0
"""Seconds that the end of a run waits for its trackers."""

LogEvent = Callable[..., None]
"""Called with the kind of an event and its fields, like `RunDirectory.log_event`."""


class TrackerThread:
    """Calls one tracker, in its own thread."""

    def __init__(self, name: str, tracker: Tracker, logged: LoggedSteps) -> None:
        self.name, self.tracker, self.last_steps = name, tracker, dict(logged)
        self.error = ""
        self.queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"track {name}", daemon=True)
        self.thread.start()

    def log(self, metrics: StepMetrics) -> None:
        """Queue metrics, unless the tracker has this step: a repeated step has the same numbers."""
        if metrics.step > self.last_steps.get(metrics.kind, -1):
            self.last_steps[metrics.kind] = metrics.step
            self.queue.put(partial(self.tracker.log, metrics))

    def finish(self, summary: Mapping[str, Any], outcome: RunOutcome) -> None:
        numbers = flatten_numbers("summary", summary)
        self.queue.put(partial(self.tracker.finish, numbers, outcome))
        self.queue.put(None)

    def join(self, timeout: float | None) -> None:
        self.thread.join(timeout)
        if self.thread.is_alive():
            self.error = "it did not finish in time"

    def _work(self) -> None:
        try:
            while call := self.queue.get():
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
        """Queue metrics for every tracker that has not failed."""
        self._drop_failed()
        for thread in self.threads:
            thread.log(metrics)

    def finish(
        self,
        summary: Mapping[str, Any],
        outcome: RunOutcome,
        timeout: float | None = FINISH_TIMEOUT,
    ) -> None:
        """Finish all trackers and wait for them; a second call does nothing."""
        for thread in self.threads:
            thread.finish(summary, outcome)
        deadline = None if timeout is None else time.monotonic() + timeout
        with redirect_stdout(io.StringIO()):  # some trackers print when they finish
            for thread in self.threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
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
            tracker = registered.get(name)()
            trackers.threads.append(TrackerThread(name, tracker, tracker.start(run)))
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
        started.finish(summary, "finished" if "after" in summary else "interrupted", timeout=None)
    if failures:
        raise TrackError("\n".join(failures))
    return urls


def _first_line(error: Exception) -> str:
    """The first line of an error's message, or else its type."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
