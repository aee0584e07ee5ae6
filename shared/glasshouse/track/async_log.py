"""A run's records brought to its trackers: the run never waits for them, and never fails with them.

run ──► Mirrors.feed(record) ──► a queue each ──► a thread each ──► Mirror.log
                                                       │ raises
run ◄── reported once, at the next record ◄────────────┘
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

from glasshouse.config import Config
from glasshouse.errors import TrackError
from glasshouse.track.base import Ending, Held, Mirror, subject
from glasshouse.track.records import Record, flat, records
from glasshouse.track.registry import make

PATIENCE = 15.0
"""Seconds that the end of a run waits for its trackers."""

Tell = Callable[..., None]
"""Called with the kind of an event and its fields, as `RunDirectory.event` is."""


@dataclass(frozen=True, slots=True)
class End:
    """The last that a mirror is told."""

    numbers: Mapping[str, float]
    how: Ending


class Feed:
    """One mirror, fed by a thread of its own."""

    def __init__(self, name: str, mirror: Mirror, held: Held) -> None:
        self.name, self.mirror, self.held = name, mirror, dict(held)
        self.failure = ""
        self.waiting: queue.SimpleQueue[Record | End] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"track {name}", daemon=True)
        self.thread.start()

    def put(self, record: Record) -> None:
        """Hand it over, unless the tracker has it: a step that is done again has the same numbers."""
        if record.step > self.held.get(record.kind, -1):
            self.held[record.kind] = record.step
            self.waiting.put(record)

    def end(self, end: End) -> None:
        self.waiting.put(end)

    def join(self, seconds: float | None) -> None:
        self.thread.join(seconds)
        if self.thread.is_alive():
            self.failure = "it has not taken everything in time"

    def _work(self) -> None:
        try:
            while isinstance(given := self.waiting.get(), Record):
                self.mirror.log(given)
            self.mirror.end(given.numbers, given.how)
        except Exception as error:
            self.failure = reason(error)


class Mirrors:
    """All trackers of a run; without any, the null object that a run begins with.

    Example: `with start(["trackio"], path, config, tell) as mirrors: mirrors.feed(trained(row))`
    """

    def __init__(self, path: Path = Path(), tell: Tell = lambda kind, **what: None) -> None:
        self.path, self.tell = path, tell
        self.feeds: list[Feed] = []

    def __enter__(self) -> Mirrors:
        return self

    def __exit__(self, *error: object) -> None:
        self.end({}, "failed")

    @property
    def looks(self) -> dict[str, str]:
        """Where each one can be looked at."""
        return {feed.name: feed.mirror.look for feed in self.feeds}

    def feed(self, record: Record) -> None:
        """Give it to every tracker that is still there."""
        self._drop_failed()
        for feed in self.feeds:
            feed.put(record)

    def end(
        self, summary: Mapping[str, Any], how: Ending, patience: float | None = PATIENCE
    ) -> None:
        """Let all of them come to their end; what is told a second time is not heard."""
        for feed in self.feeds:
            feed.end(End(flat("summary", summary), how))
        until = None if patience is None else time.monotonic() + patience
        with redirect_stdout(io.StringIO()):  # some say goodbye
            for feed in self.feeds:
                feed.join(None if until is None else max(0.0, until - time.monotonic()))
        self._drop_failed()
        self.feeds = []

    def _drop_failed(self) -> None:
        for feed in [feed for feed in self.feeds if feed.failure]:
            self.feeds.remove(feed)
            self.tell(
                "untracked",
                tracker=feed.name,
                text=f"The tracker {feed.name} failed and is dropped: {feed.failure}. The run goes on "
                f"without it; afterwards: glasshouse track {self.path} --to {feed.name}",
            )


def start(names: Sequence[str], path: Path, config: Config, tell: Tell) -> Mirrors:
    """Start the trackers and bring each one up to what the run directory holds."""
    mirrors = Mirrors(path, tell)
    if not names:
        return mirrors
    run = subject(path, config)
    for name in dict.fromkeys(names):
        try:
            mirror = make(name)
            mirrors.feeds.append(Feed(name, mirror, mirror.start(run)))
        except Exception as error:
            mirrors.end({}, "failed")
            raise TrackError(
                f"The tracker {name} could not start: {reason(error)}. docs/tracking.md says what it "
                "needs; trackers=[] trains without it."
            ) from error
    for record in records(path):
        mirrors.feed(record)
    return mirrors


def reason(error: Exception) -> str:
    """Its first line, or its name."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
