"""Chunks for whichever generator is free; results are returned in submission order."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field

from glasshouse.rollout.collector import Chunk, ChunkCompletions
from glasshouse.types import Completion, SamplingParams

POLL_SECONDS = 0.05
"""How often a waiting thread checks whether the run should stop."""


@dataclass(order=True, slots=True)
class ChunkTask:
    """One chunk to generate with one version of the weights; the smallest number comes first."""

    number: int
    version: int = field(compare=False)
    chunk: Chunk = field(compare=False)
    sampling: SamplingParams = field(compare=False)
    future: Future[list[list[Completion]]] = field(compare=False, default_factory=Future)


@dataclass(frozen=True, slots=True)
class PendingChunks:
    """Chunks that were submitted together; implements `PendingCompletions`."""

    tasks: list[ChunkTask]
    version: int
    check: Callable[[], None]
    """Called while waiting; an exception from it ends the waiting."""

    def result(self) -> ChunkCompletions:
        """Wait for all chunks and return their completions."""
        futures = [task.future for task in self.tasks]
        try:
            while True:
                done, waiting = wait(futures, POLL_SECONDS, return_when=FIRST_EXCEPTION)
                if not waiting:
                    return [future.result() for future in futures]
                for future in done:
                    future.result()  # raises the error of a failed run
                self.check()  # generating has no side effects: any moment is safe
        finally:
            self.cancel()

    def cancel(self) -> None:
        for task in self.tasks:
            task.future.cancel()

    @property
    def is_open(self) -> bool:
        """Whether generators may still need the weights of its version."""
        return not all(task.future.done() for task in self.tasks)


class ChunkQueue:
    """Tasks that generator threads take one at a time and, if they fail, `put` back; thread-safe."""

    def __init__(self) -> None:
        self.tasks: queue.PriorityQueue[ChunkTask] = queue.PriorityQueue()
        self.numbers = itertools.count()
        self.pending: list[PendingChunks] = []
        self.error: Exception | None = None
        self.closed = False
        self.put = self.tasks.put

    def submit(
        self,
        version: int,
        chunks: Sequence[Chunk],
        sampling: SamplingParams,
        check: Callable[[], None],
    ) -> PendingChunks:
        tasks = [ChunkTask(next(self.numbers), version, chunk, sampling) for chunk in chunks]
        pending = PendingChunks(tasks, version, check)
        self.pending = [other for other in self.pending if other.is_open] + [pending]
        for task in tasks:
            self.put(task)
        if self.error:
            self.fail(self.error)
        return pending

    def take(self) -> ChunkTask | None:
        """Return the next task, or None if there is none within `POLL_SECONDS`."""
        with suppress(queue.Empty):
            task = self.tasks.get(timeout=POLL_SECONDS)
            return None if task.future.done() or self.closed else task
        return None

    def complete(self, task: ChunkTask, completions: list[list[Completion]]) -> None:
        with suppress(InvalidStateError):  # nobody waits for it any more
            task.future.set_result(completions)

    def fail(self, error: Exception) -> None:
        """Make every waiting `result` raise this error; the first error wins."""
        self.error = self.error or error
        for task in [task for pending in self.pending for task in pending.tasks]:
            with suppress(InvalidStateError):
                task.future.set_exception(self.error)
