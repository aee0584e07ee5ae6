"""Sends a run's metrics to its trackers in the background: the run never waits for a tracker.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.errors import TrackError
from glasshouse.terminal import shell_command
from glasshouse.track.base import LoggedSteps, RunOutcome, Tracker, make_tracked_run
from glasshouse.track.base import tracker as registered
from glasshouse.track.step_metrics import StepMetrics, flatten_numbers, read_step_metrics

FINISH_TIMEOUT = 15.0
"""Seconds that the end of a run waits for its trackers."""

LogEvent = Callable[..., None]
"""Called with the kind of an event and its fields, like `RunDirectory.log_event`."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The last item of a tracker's queue."""

    summary: Mapping[str, float]
    outcome: RunOutcome


class TrackerThread:
    """Sends metrics to one tracker, in its own thread."""

    def __init__(self, name: str, tracker: Tracker, logged: LoggedSteps) -> None:
        self.name, self.tracker, self.last_steps = name, tracker, dict(logged)
        self.error = ""
        self.queue: queue.SimpleQueue[StepMetrics | Finish] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"track {name}", daemon=True)
        self.thread.start()

    def submit(self, metrics: StepMetrics) -> None:
        """Queue metrics, unless the tracker has this step: a repeated step has the same numbers."""
        if metrics.step > self.last_steps.get(metrics.kind, -1):
            self.last_steps[metrics.kind] = metrics.step
            self.queue.put(metrics)

    def join(self, timeout: float | None) -> None:
        self.thread.join(timeout)
        if self.thread.is_alive():
            self.error = "it did not finish in time"

    def _work(self) -> None:
        try:
            while isinstance(item := self.queue.get(), StepMetrics):
                self.tracker.log(item)
            self.tracker.finish(item.summary, item.outcome)
        except Exception as error:
            self.error = _first_line(error)


class Trackers:
    """All trackers of a run; without any, every method does nothing.

    Example: `with start_trackers(["trackio"], path, config, log_event) as trackers: trackers.log(…)`
    """

    def __init__(
        self, path: Path = Path(), log_event: LogEvent = lambda kind, **fields: None
    ) -> None:
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
            thread.submit(metrics)

    def finish(
        self,
        summary: Mapping[str, Any],
        outcome: RunOutcome,
        timeout: float | None = FINISH_TIMEOUT,
    ) -> None:
        """Finish all trackers and wait for them; a second call does nothing."""
        for thread in self.threads:
            thread.queue.put(Finish(flatten_numbers("summary", summary), outcome))
        deadline = None if timeout is None else time.monotonic() + timeout
        with redirect_stdout(io.StringIO()):  # some trackers print when they finish
            for thread in self.threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._drop_failed()
        self.threads = []

    def _drop_failed(self) -> None:
        for thread in [thread for thread in self.threads if thread.error]:
            self.threads.remove(thread)
            command = shell_command(
                ["glasshouse", "report", "track", self.path, "--to", thread.name]
            )
            self.log_event(
                "tracker_failed",
                tracker=thread.name,
                text=f"The tracker {thread.name} failed: {thread.error}. The run continues without "
                f"it. Upload the rest later with: {command}",
            )


def start_trackers(
    names: Sequence[str], path: Path, config: Config, log_event: LogEvent
) -> Trackers:
    """Start the trackers and send what the run directory already holds."""
    trackers = Trackers(path, log_event)
    if not names:
        return trackers
    run = make_tracked_run(path, config)
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


def _first_line(error: Exception) -> str:
    """The first line of an error's message, or else its type."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
