"""A queue of chunks for whichever generator is free; results are returned in submission order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glasshouse.rollout.collector import Chunk, ChunkCompletions
from glasshouse.types import Completion, SamplingParams

POLL_SECONDS = 0.05
"""How often a waiting thread checks whether the run should stop."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTask:
    """One chunk to generate with one version of the weights."""

    index: int
    """Position of the chunk among those submitted together."""
    version: int
    chunk: Chunk
    sampling: SamplingParams
    pending: PendingChunks


class PendingChunks:
    """Chunks that were submitted together; implements `PendingCompletions`."""

    def __init__(
        self,
        queue: ChunkQueue,
        version: int,
        check_interrupt: Callable[[], None],
        emit_events: Callable[[], None],
    ) -> None:
        self.queue, self.version = queue, version
        self.check_interrupt, self.emit_events = check_interrupt, emit_events
        self.total = 0
        self.results: dict[int, list[list[Completion]]] = {}
        self.open = True

    def result(self) -> ChunkCompletions:
        """Wait for all chunks and return their completions."""
        try:
            while True:
                with self.queue.changed:
                    if len(self.results) < self.total and not self.queue.error:
                        self.queue.changed.wait(POLL_SECONDS)
                    complete = len(self.results) == self.total
                self.emit_events()
                if complete:
                    return [self.results[index] for index in range(self.total)]
                if self.queue.error:
                    raise self.queue.error
                self.check_interrupt()  # generating has no side effects: any moment is safe
        finally:
            self.open = False
            self.queue.discard(self)


class ChunkQueue:
    """Tasks that generator threads take one at a time; thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[ChunkTask] = deque()
        self.pending: list[PendingChunks] = []
        self.error: Exception | None = None
        self.closed = False

    def submit(
        self, pending: PendingChunks, chunks: Sequence[Chunk], sampling: SamplingParams
    ) -> None:
        with self.changed:
            pending.total = len(chunks)
            self.pending.append(pending)
            self.tasks += [
                ChunkTask(index, pending.version, chunk, sampling, pending)
                for index, chunk in enumerate(chunks)
            ]
            self.changed.notify_all()

    def take(self) -> ChunkTask | None:
        """Return the next task, or None if there is none within `POLL_SECONDS`."""
        with self.changed:
            if not self.tasks and not self.closed:
                self.changed.wait(POLL_SECONDS)
            return self.tasks.popleft() if self.tasks and not self.closed else None

    def requeue(self, task: ChunkTask) -> None:
        """Put a task back at the front, for another generator."""
        with self.changed:
            if task.pending.open:
                self.tasks.appendleft(task)
            self.changed.notify_all()

    def complete(self, task: ChunkTask, completions: list[list[Completion]]) -> None:
        with self.changed:
            task.pending.results[task.index] = completions
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Make every waiting `result` raise this error; the first error wins."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def discard(self, pending: PendingChunks) -> None:
        with self.changed:
            self.tasks = deque(task for task in self.tasks if task.pending is not pending)
            self.pending = [other for other in self.pending if other is not pending]

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.tasks.clear()
            self.changed.notify_all()
