"""Chunks waiting for a free generator, and their results coming back in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glasshouse.backends.base import Chunk
from glasshouse.generate import Sampling
from glasshouse.types import Completion

TICK = 0.05
"""Seconds between two looks at whether the run is to stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One chunk to be generated with one version."""

    number: int
    version: int
    chunk: Chunk
    sampling: Sampling
    batch: Batch


class Batch:
    """Chunks handed in together; `result` waits for all of them."""

    def __init__(
        self, pool: Pool, version: int, between: Callable[[], None], tell: Callable[[], None]
    ) -> None:
        self.pool, self.version, self.between, self.tell = pool, version, between, tell
        self.wanted = 0
        self.done: dict[int, list[list[Completion]]] = {}
        self.open = True

    def result(self) -> list[list[list[Completion]]]:
        """For each chunk, for each request, its completions."""
        try:
            while True:
                with self.pool.changed:
                    if len(self.done) < self.wanted and not self.pool.error:
                        self.pool.changed.wait(TICK)
                    finished = len(self.done) == self.wanted
                self.tell()
                if finished:
                    return [self.done[number] for number in range(self.wanted)]
                if self.pool.error:
                    raise self.pool.error
                self.between()  # generating has no side effects: any moment is a safe one
        finally:
            self.open = False
            self.pool.drop(self)


class Pool:
    """A queue of jobs that generators take from; thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: deque[Job] = deque()
        self.batches: list[Batch] = []
        self.error: Exception | None = None
        self.closed = False

    def submit(self, batch: Batch, chunks: Sequence[Chunk], sampling: Sampling) -> None:
        with self.changed:
            batch.wanted = len(chunks)
            self.batches.append(batch)
            self.jobs += [
                Job(number, batch.version, chunk, sampling, batch)
                for number, chunk in enumerate(chunks)
            ]
            self.changed.notify_all()

    def take(self) -> Job | None:
        """The next job, or None if there is none within a tick."""
        with self.changed:
            if not self.jobs and not self.closed:
                self.changed.wait(TICK)
            return self.jobs.popleft() if self.jobs and not self.closed else None

    def give_back(self, job: Job) -> None:
        """Somebody else shall do it, and first."""
        with self.changed:
            if job.batch.open:
                self.jobs.appendleft(job)
            self.changed.notify_all()

    def finish(self, job: Job, completions: list[list[Completion]]) -> None:
        with self.changed:
            job.batch.done[job.number] = completions
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Nothing more will come; whoever waits is told why."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def drop(self, batch: Batch) -> None:
        with self.changed:
            self.jobs = deque(job for job in self.jobs if job.batch is not batch)
            self.batches = [b for b in self.batches if b is not batch]

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.jobs.clear()
            self.changed.notify_all()
