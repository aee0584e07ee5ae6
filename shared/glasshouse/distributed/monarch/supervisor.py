"""Supervise one generator: a thread that keeps its process running and sends it chunks.

    spawn ──► open ──► take a chunk ──► generate ──► validate ──► complete ──► take …
      ▲                    │  died, hung, or invalid reply
      └──── back off ◄─────┴── the chunk returns to the queue for another generator

While one supervisor respawns its process, the others continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glasshouse.config.schema import MonarchConfig
from glasshouse.distributed.base import EventSink
from glasshouse.distributed.monarch import messages
from glasshouse.distributed.monarch.chunk_queue import ChunkQueue, ChunkTask
from glasshouse.distributed.monarch.runtime import CHUNK_TIMEOUT, ActorProcesses, ProcessDied
from glasshouse.errors import RunError
from glasshouse.models.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """What all supervisors of a run share."""

    queue: ChunkQueue
    policy: Policy
    config: MonarchConfig
    spawn: Callable[[int], ActorProcesses]
    """Start the process of generator n; blocks while its host is lost."""
    open: Callable[[int, ActorProcesses], None]
    """Make a new process load the model; blocks."""
    checksum: Callable[[int], bytes]
    """The learner's checksum of a version."""
    queue_event: EventSink


class GeneratorSupervisor(threading.Thread):
    """One generator, respawned for as long as the run lasts."""

    def __init__(self, number: int, context: SupervisorContext) -> None:
        super().__init__(name=f"generator-{number}", daemon=True)
        self.number, self.context = number, context
        self.processes: ActorProcesses | None = None
        self.failures = 0
        """Failures in a row, without a completed chunk in between."""
        self.spawned = 0
        self.ready = False
        """Whether its process runs and has loaded the model."""
        self.verified_version: int | None = None
        """The version at which its weights were last verified."""
        self.reload = False
        """Whether it must read the weights again before its next chunk."""
        self.load_seconds = 0.0

    @property
    def pids(self) -> list[int]:
        return list(self.processes.pids) if self.processes else []

    def run(self) -> None:
        try:
            while not self.context.queue.closed:
                self._serve()
        except Exception as error:  # a bug here must not leave the run waiting forever
            self.context.queue.fail(error)
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
            task = self.context.queue.take()
            if task:
                self._generate(task, self.processes)
        except (ProcessDied, messages.InvalidReply) as error:
            if task:
                self.context.queue.requeue(task)
            self._handle_failure(error, task)

    def _spawn(self) -> None:
        context = self.context
        if self.failures > 1:
            self._sleep(context.config.backoff * 2 ** (self.failures - 2))
        if context.queue.closed:
            raise ProcessDied("the run ended")
        started = time.monotonic()
        self.processes = context.spawn(self.number)
        self.processes.wait_until_started(context.config.spawn_timeout)
        context.open(self.number, self.processes)
        self.verified_version = None
        if self.spawned:
            seconds = round(time.monotonic() - started, 3)
            context.queue_event("respawn", generator=self.number, seconds=seconds)
        self.spawned += 1
        self.ready = True

    def _generate(self, task: ChunkTask, processes: ActorProcesses) -> None:
        context, version = self.context, task.version
        verify = (
            self.verified_version is None
            or version - self.verified_version >= context.config.verify_every
        )
        end_tokens = sorted(context.policy.end_tokens)
        call = processes.actor.generate.call(
            version, task.chunk, task.sampling, end_tokens, verify, self.reload
        )
        (reply,) = processes.wait(call, context.config.chunk_timeout, CHUNK_TIMEOUT)
        if isinstance(reply, messages.RemoteUserError):
            context.queue.fail(reply.to_error())
            return
        vocab_size = context.policy.model.get_input_embeddings().num_embeddings
        completions = messages.check_reply(reply, task.chunk, task.sampling, version, vocab_size)
        if verify:
            if reply.checksum != context.checksum(version):
                raise messages.UnexpectedWeights(
                    f"its weights differ from the learner's version {version}"
                )
            self.verified_version = version
        self.reload = False
        self.load_seconds = reply.load_seconds or self.load_seconds
        self.failures = 0
        context.queue.complete(task, completions)

    def _handle_failure(self, error: Exception, task: ChunkTask | None) -> None:
        """Report the failure and kill the process; end the run after too many in a row."""
        context = self.context
        if context.queue.closed:
            return
        self.failures += 1
        output = self.processes.stderr_tail() if self.processes else ""
        if isinstance(error, messages.UnexpectedWeights) and not self.reload:
            self.reload = True  # keep the process if reading the weights again helps
        else:
            self._kill()
        invalid = isinstance(error, messages.InvalidReply)
        details: dict[str, Any] = {
            "generator": self.number,
            "cause": "invalid_reply" if invalid else "process_died",
            "text": f"Generator {self.number}: {error}.",
        }
        if task:
            details |= {"chunk": task.index, "version": task.version}
        context.queue_event("fault", **details)
        if self.failures >= context.config.max_failures:
            context.queue.fail(
                RunError(
                    f"Generator {self.number} failed {self.failures} times in a row "
                    f"(monarch.max_failures); the last time, {error}. End of its output: "
                    f"{output or '(empty)'}"
                )
            )
            self._sleep(float("inf"))

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.context.queue.closed:
            time.sleep(0.05)

    def _kill(self) -> None:
        self.ready = self.reload = False
        if self.processes:
            self.processes.kill()
        self.processes = None
