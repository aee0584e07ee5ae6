"""Supervise processes: a generator is replaced when it fails; the learner cannot be, so the run ends.

    spawn ──► open ──► take a chunk ──► generate ──► check ──► complete ──► take …
      ▲                    │  died, hung, or invalid reply
      └──── back off ◄─────┴── the chunk returns to the queue for another generator

While one supervisor replaces its generator, the others continue.
"""

from __future__ import annotations

import itertools
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.actors import ActorSetup, LearnerActor
from glasshouse.distributed.monarch.processes import (
    ActorProcesses,
    Host,
    ProcessDied,
    ProcessTimeout,
)
from glasshouse.errors import GlasshouseError, RunError
from glasshouse.generate.engines import find_defect
from glasshouse.rollout.collector import Chunk
from glasshouse.types import Completion, SamplingParams

if TYPE_CHECKING:
    from glasshouse.distributed.monarch.backend import MonarchBackend


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
    """Chunks that were submitted together; an iterable of their completions."""

    tasks: list[ChunkTask]
    version: int
    check: Callable[[], None]
    """Called while waiting; an exception from it ends the waiting."""

    def __iter__(self) -> Iterator[list[list[Completion]]]:
        """Yield the completions of each chunk, in order, as soon as they are there."""
        try:
            for task in self.tasks:
                while not task.future.done():
                    for other in self.tasks:
                        if other.future.done():
                            other.future.result()  # raises the error of a failed run
                    self.check()  # generating has no side effects: any moment is safe
                    wait([task.future], POLL_SECONDS)
                yield task.future.result()
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


class InvalidReply(RuntimeError):
    """A reply that a working generator cannot have sent."""


class GeneratorSupervisor(threading.Thread):
    """One generator, replaced for as long as the run lasts."""

    def __init__(self, number: int, backend: MonarchBackend) -> None:
        super().__init__(name=f"generator-{number}", daemon=True)
        self.number, self.backend = number, backend
        self.queue, self.config = backend.queue, backend.config.monarch
        self.processes: ActorProcesses | None = None
        self.failures = 0
        """Failures in a row, without a completed chunk in between."""
        self.spawned = 0
        self.ready = False
        """Whether its process runs and has loaded the model."""
        self.verified: int | None = None
        """The last period of `verify_every` versions in which its weights were verified."""

    @property
    def pids(self) -> list[int]:
        return list(self.processes.pids) if self.processes else []

    def run(self) -> None:
        try:
            while not self.queue.closed:
                self._serve()
        except Exception as error:  # the user's, or a bug, which must not leave the run waiting
            self.queue.fail(error)
        finally:
            self._kill()

    def _serve(self) -> None:
        """Spawn the process if there is none, then generate one chunk."""
        task: ChunkTask | None = None
        try:
            if self.processes is None:
                self._spawn()
            assert self.processes is not None
            if self.processes.has_exited:
                raise ProcessDied("its process ended")
            task = self.queue.take()
            if task:
                self._generate(task, self.processes)
        except (ProcessDied, InvalidReply) as error:
            if task:
                self.queue.put(task)
            self._handle_failure(error, task)

    def _spawn(self) -> None:
        if self.failures > 1:
            self._sleep(self.config.backoff * 2 ** (self.failures - 2))
        started = time.monotonic()
        with self.backend.starting:
            if self.queue.closed:
                raise ProcessDied("the run ended")
            self.processes = self.backend.spawn_generator(self.number)
            self.processes.start(self.backend.make_setup(self.number, self.processes.host))
        if self.spawned:
            seconds = round(time.monotonic() - started, 3)
            self.backend.queue_event("respawn", generator=self.number, seconds=seconds)
        self.spawned += 1
        self.verified, self.ready = None, True

    def _generate(self, task: ChunkTask, processes: ActorProcesses) -> None:
        period = task.version // self.config.verify_every
        verify = period != self.verified
        call = processes.actor.generate.call(task.version, task.chunk, task.sampling, verify)
        try:
            ((completions, is_verified),) = processes.wait(call, "chunk_timeout")
        except GlasshouseError as error:  # the user's; the process is fine
            self.queue.fail(error)
            return
        vocab_size = self.backend.policy.model.get_input_embeddings().num_embeddings
        check_completions(completions, task, vocab_size)
        if not is_verified:
            raise InvalidReply(f"its weights differ from the learner's version {task.version}")
        self.verified, self.failures = period, 0
        self.queue.complete(task, completions)

    def _handle_failure(self, error: Exception, task: ChunkTask | None) -> None:
        """Report the failure and kill the process; end the run after too many in a row."""
        if self.queue.closed:
            return
        self.failures += 1
        output = self.processes.read_output() if self.processes else "(empty)"
        self._kill()
        details: dict[str, Any] = {
            "generator": self.number,
            "cause": "invalid_reply" if isinstance(error, InvalidReply) else "process_died",
            "text": f"Generator {self.number}: {error}.",
        }
        if task:
            details |= {"chunk": task.number, "version": task.version}
        self.backend.queue_event("fault", **details)
        if self.failures >= self.config.max_failures:
            self.queue.fail(
                RunError(
                    f"Generator {self.number} failed {self.failures} times in a row "
                    f"(monarch.max_failures); the last time, {error}. End of its output: {output}"
                )
            )
            self._sleep(float("inf"))

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.queue.closed:
            time.sleep(0.05)

    def _kill(self) -> None:
        self.ready = False
        if self.processes:
            self.processes.kill()
        self.processes = None


def check_completions(
    completions: Sequence[Sequence[Completion]], task: ChunkTask, vocab_size: int
) -> None:
    """Raise `InvalidReply` if these cannot be the completions of a chunk."""
    counts = [len(group) for group in completions]
    expected = [len(request.noise_keys) for request in task.chunk]
    if counts != expected:
        raise InvalidReply(f"it sent {sum(counts)} completions instead of {sum(expected)}")
    for completion in [c for group in completions for c in group]:
        if completion.policy_version != task.version:
            raise InvalidReply(
                f"it used version {completion.policy_version} of the weights instead of {task.version}"
            )
        if defect := find_defect(completion, task.sampling.max_tokens, vocab_size):
            raise InvalidReply(f"it sent {defect}")


class LearnerProcesses:
    """The ranks of the learner, called as one. They start in the background; the first call waits for them."""

    def __init__(self, host: Host, backend: MonarchBackend) -> None:
        self.config: Config = backend.config
        self.computed_by, self.starting = backend.computed_by, backend.starting
        self.mesh = ActorProcesses(
            host,
            "learner",
            LearnerActor,
            self.config,
            count=self.config.monarch.learners,
            stopped=lambda: backend.queue.closed,
        )
        self.error: Exception | None = None
        self.opening = threading.Thread(
            target=self._open, args=(backend,), name="learner", daemon=True
        )
        self.opening.start()

    def call(self, endpoint: str, *arguments: Any) -> list[Any]:
        """Call an endpoint on every rank; raise the user's error or, if a process died or hangs, `RunError`. After
        that, every further call raises the same error at once."""
        self.opening.join()
        if self.error:
            raise self.error
        try:
            call = getattr(self.mesh.actor, endpoint).call(*arguments)
            return self.mesh.wait(call, "update_timeout")
        except ProcessDied as error:
            self.error = self._run_error(error)
            self.mesh.kill()  # all ranks, also stopped ones
            raise self.error from None

    def kill(self) -> None:
        self.opening.join()
        self.mesh.kill()

    def _open(self, backend: MonarchBackend) -> None:
        try:
            with self.starting, tempfile.TemporaryDirectory() as folder:
                setup = ActorSetup(
                    config=self.config,
                    weights=backend.exact.layout,
                    published=backend.weights.layout,
                    computed_by=self.computed_by,
                    rendezvous=str(Path(folder) / "rendezvous"),
                )
                self.mesh.start(setup)
        except ProcessDied as error:
            self.error = self._run_error(error)
        except Exception as error:  # the first call raises it
            self.error = error

    def _run_error(self, error: ProcessDied) -> RunError:
        hint = "If it can take longer, increase that key. " * isinstance(error, ProcessTimeout)
        return RunError(
            f"The learner failed: {error}. {hint}Run the same command again to resume from the last "
            f"checkpoint. End of its output: {self.mesh.read_output()}"
        )
