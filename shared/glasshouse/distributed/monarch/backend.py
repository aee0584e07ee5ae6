"""`backend: monarch`: generators and learner as Monarch actors, each in its own process.

controller (training loop)   data, rewards, rollout log; owns the file of shared weights
  ├── learner                `monarch.learners` processes; rank 0 writes each version once
  ├── generator 0            one mesh per generator, so that a crash affects no other
  └── generator 1 …          map the weights and take the next chunk from the queue
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.distributed.base import EventSink
from glasshouse.distributed.monarch import messages, runtime
from glasshouse.distributed.monarch.actors import ActorSetup, GeneratorActor
from glasshouse.distributed.monarch.chunk_queue import ChunkQueue, PendingChunks
from glasshouse.distributed.monarch.learners import LearnerProcesses
from glasshouse.distributed.monarch.runtime import SPAWN_TIMEOUT, ActorProcesses, Host, ProcessDied
from glasshouse.distributed.monarch.shared_weights import (
    SharedWeights,
    count_trainable,
    trainable_tensors,
)
from glasshouse.distributed.monarch.supervisor import GeneratorSupervisor, SupervisorContext
from glasshouse.distributed.monarch.weight_copies import WeightCopy, send_weights
from glasshouse.errors import RunError
from glasshouse.learn.learner_state import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.policy import Policy
from glasshouse.rollout.collector import Chunk
from glasshouse.types import SamplingParams


class MonarchBackend:
    """Implements `Backend`.

    Example: `MonarchBackend(policy, config).submit(chunks, sampling, check_interrupt).result()`
    """

    def __init__(
        self,
        policy: Policy,
        config: Config,
        event: EventSink = lambda kind, **details: None,
        assign_host: Callable[[int], Host] | None = None,
    ) -> None:
        """`assign_host`: the host of generator n; called again each time it is respawned."""
        controller = runtime.local_host()
        self.policy, self.config, self.event = policy, config, event
        self.assign_host = assign_host or (lambda number: controller)
        self.pending_events: deque[tuple[str, dict[str, Any]]] = deque()
        self.version = 0
        slots = max(2, config.max_offpolicy_steps + 1)
        self.weights = SharedWeights.create(count_trainable(policy), slots)
        self.weights.write(0, trainable_tensors(policy))
        self.copies: dict[str, WeightCopy] = {}
        """Copies of the weights on other hosts, by the host's name."""
        self.copies_lock = threading.Lock()
        self.queue = ChunkQueue()
        self.timings: dict[str, float] = {}
        self.learners = LearnerProcesses(
            controller, config, self.weights.path, 0, lambda: self.queue.closed
        )
        context = SupervisorContext(
            queue=self.queue, policy=policy, config=config.monarch, spawn=self._spawn,
            open=self._open, checksum=self.weights.checksum, queue_event=self._queue_event,
        )  # fmt: skip
        self.supervisors = [
            GeneratorSupervisor(number, context) for number in range(config.monarch.generators)
        ]
        for supervisor in self.supervisors:
            supervisor.start()
        atexit.register(self.close)  # threads that wait on Monarch must end before the interpreter

    def submit(
        self, chunks: Sequence[Chunk], sampling: SamplingParams, check_interrupt: Callable[[], None]
    ) -> PendingChunks:
        pending = PendingChunks(self.queue, self.version, check_interrupt, self._emit_events)
        self.queue.submit(pending, chunks, sampling)
        return pending

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        overwritten = self.version + 1 - self.weights.slots
        if any(pending.version <= overwritten for pending in self.queue.pending):
            raise RuntimeError("An update would overwrite weights that generators still need.")
        metrics, seconds = self.learners.call("update", list(samples))[0]
        self._publish(self.version + 1, seconds)
        if self.version % self.config.monarch.verify_every == 0:
            self._verify_learners()
        self._emit_events()
        return dict(metrics)

    def timing(self) -> dict[str, Any]:
        return dict(self.timings)

    def state(self) -> LearnerState:
        if self.config.learn.sharding == "fsdp":
            return LearnerState(self.version, {}, save_shards=self._save_shards)
        state: LearnerState = self.learners.call("state")[0]
        return state

    def restore(self, state: LearnerState) -> None:
        if state.folder:
            self.learners.call("load_shards", state.version, str(state.folder))
        else:
            self.weights.write(state.version, trainable_tensors(self.policy))
            self.learners.call("restore", state)
            if self.config.learn.lora_rank:  # adapters are in the state, not in the shared file
                self.learners.call("publish")
        self._publish(state.version, 0.0)
        for supervisor in self.supervisors:  # a generator may hold other weights of that version
            supervisor.reload, supervisor.verified_version = True, None

    def close(self) -> None:
        if self.queue.closed:
            return
        atexit.unregister(self.close)
        self.queue.close()
        for supervisor in self.supervisors:
            supervisor.join(30)
        self.learners.kill()
        for copy in self.copies.values():
            copy.close()
        self._emit_events()
        self.weights.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the generators and learners, the learners last."""
        generators = [pid for supervisor in self.supervisors for pid in supervisor.pids]
        return generators + self.learners.pids

    def _publish(self, version: int, seconds: float) -> None:
        """Copy the new weights to the controller's policy and to every other host."""
        started = time.perf_counter()
        self.weights.read(version, trainable_tensors(self.policy))
        with self.copies_lock:
            sent = self.weights.num_bytes * (1 + len(self.copies))
            failures = (
                send_weights(self.weights, version, self.copies.values()) if self.copies else {}
            )
            for name, reason in failures.items():  # its generators fail too and are respawned
                self._queue_event(
                    "fault", host=name, cause="process_died", text=f"Host {name}: {reason}."
                )
                self.copies.pop(name).close()
            self.version = version
        self.timings = {
            "sync_bytes": float(sent),
            "sync": round(seconds + time.perf_counter() - started, 6),
            "sync_load": round(max(s.load_seconds for s in self.supervisors), 6),
        }

    def _save_shards(self, folder: Path) -> None:
        self.learners.call("save_shards", str(folder.resolve()))

    def _verify_learners(self) -> None:
        """Check that all ranks hold the weights that were published."""
        checksums = set(self.learners.call("checksum"))
        if checksums != {self.weights.checksum(self.version)}:
            raise RunError(
                f"The learner processes no longer hold the same weights (version {self.version}). "
                "Run the same command again to resume from the last checkpoint."
            )

    def _spawn(self, number: int) -> ActorProcesses:
        return ActorProcesses.spawn(
            self.assign_host(number), f"generator-{number}", GeneratorActor,
            threads=self.config.threads, stopped=lambda: self.queue.closed,
        )  # fmt: skip

    def _open(self, number: int, processes: ActorProcesses) -> None:
        setup = ActorSetup(
            config=self.config,
            weights_path=self._weights_path(processes.host),
            version=self.version,
            index=number,
        )
        timeout = self.config.monarch.spawn_timeout
        (answer,) = processes.wait(processes.actor.open.call(setup), timeout, SPAWN_TIMEOUT)
        if isinstance(answer, messages.RemoteUserError):
            self.queue.fail(answer.to_error())

    def _weights_path(self, host: Host) -> str:
        """Return the file of weights that generators of a host map; copies the weights there first."""
        if host.is_local:
            return self.weights.path
        with self.copies_lock:
            if host.name not in self.copies:
                copy = WeightCopy(host, self.weights, self.config.monarch.spawn_timeout)
                for version in self.weights.versions():  # a chunk may still need an older one
                    if failures := send_weights(self.weights, version, [copy]):
                        raise ProcessDied(failures[host.name])
                self.copies[host.name] = copy
            return self.copies[host.name].path

    def _queue_event(self, kind: str, **details: Any) -> None:
        """Queue an event from any thread; the controller's thread emits it later."""
        self.pending_events.append((kind, details))

    def _emit_events(self) -> None:
        while self.pending_events:
            kind, details = self.pending_events.popleft()
            self.event(kind, **details)
