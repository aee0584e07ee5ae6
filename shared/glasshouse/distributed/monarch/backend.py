"""`backend: monarch`: generators and learner as Monarch actors, each in its own process.

controller (training loop)   data, rewards, rollout log; owns the file of shared weights
  ├── learner                `monarch.learners` processes; rank 0 writes each version once
  ├── generator 0            one mesh per generator, so that a crash affects no other
  └── generator 1 …          map the weights and take the next chunk from the queue
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from glasshouse.config.schema import Config
from glasshouse.distributed.backend import EventSink
from glasshouse.distributed.hosts.host_pool import HostPool
from glasshouse.distributed.monarch.actors import (
    ActorSetup,
    GeneratorActor,
    SharedWeights,
    WeightCopyActor,
    WeightLayout,
    count_trainable,
    published_dtype,
    trainable_tensors,
)
from glasshouse.distributed.monarch.processes import ActorProcesses, Host, ProcessDied, local_host
from glasshouse.distributed.monarch.supervision import (
    ChunkQueue,
    GeneratorSupervisor,
    LearnerProcesses,
    PendingChunks,
)
from glasshouse.errors import RunError
from glasshouse.learn.learner import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models import llama
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
        hosts: HostPool | None = None,
    ) -> None:
        """Generators run on the `hosts`, without any on this one; the learner always runs on this one."""
        self.policy, self.config, self.event, self.hosts = policy, config, event, hosts
        self.controller = local_host()
        self.computed_by = llama.describe_path(policy.model, policy.dtype)
        self.pending_events: deque[tuple[str, dict[str, Any]]] = deque()
        self.version = 0
        self.numel, dtype = count_trainable(policy), published_dtype(policy)
        slots = max(2, config.max_offpolicy_steps + 1)
        self.weights = self.exact = SharedWeights.create(self.numel, slots, dtype)
        if dtype != torch.float32:
            self.exact = SharedWeights.create(self.numel, 1)
        self._write_policy(0)
        self.copies: dict[str, tuple[ActorProcesses, WeightLayout]] = {}
        """Copies of the weights on other hosts, by the host's name, and the file of each."""
        self.copies_lock = threading.Lock()
        self.queue = ChunkQueue()
        self.timings: dict[str, float] = {}
        # Importing torch takes seconds of CPU. As many processes as there are cores start at a time, so that the first
        # ones begin to work instead of all of them waiting for each other; the hosts' cores are their own.
        at_once = config.monarch.generators + 1 if hosts else os.cpu_count() or 1
        self.starting = threading.BoundedSemaphore(at_once)
        self.learners = LearnerProcesses(self.controller, self)
        self.supervisors = [
            GeneratorSupervisor(number, self) for number in range(config.monarch.generators)
        ]
        for supervisor in self.supervisors:
            supervisor.start()
        atexit.register(self.close)  # threads that wait on Monarch must end before the interpreter

    def submit(
        self, chunks: Sequence[Chunk], sampling: SamplingParams, check_interrupt: Callable[[], None]
    ) -> PendingChunks:
        def check() -> None:
            self.emit_events()
            check_interrupt()

        return self.queue.submit(self.version, chunks, sampling, check)

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        overwritten = self.version + 1 - self.weights.slots
        if any(p.is_open and p.version <= overwritten for p in self.queue.pending):
            raise RuntimeError("An update would overwrite weights that generators still need.")
        metrics = self.learners.call("update", list(samples))[0]
        self._publish(self.version + 1)
        if self._is_verified(self.version):
            self._verify_learners()
        self.emit_events()
        return dict(metrics)

    def timing(self) -> dict[str, Any]:
        return dict(self.timings)

    def state(self) -> LearnerState:
        if self.exact is not self.weights:
            self.learners.call("publish", True, False)
        self.exact.read(self.version, trainable_tensors(self.policy))
        if self.config.learn.sharding == "fsdp":
            return LearnerState(self.version, {}, save_shards=self._save_shards)
        state: LearnerState = self.learners.call("state")[0]
        return state

    def restore(self, state: LearnerState) -> None:
        if not state.folder:
            self._write_policy(state.version)
        self.learners.call("restore", state)
        self._publish(state.version)

    def close(self) -> None:
        if self.queue.closed:
            return
        atexit.unregister(self.close)
        self.queue.closed = True
        if self.hosts:
            self.hosts.stopping.set()
        for supervisor in self.supervisors:
            supervisor.join(30)
        self.learners.kill()
        for copy, _ in self.copies.values():
            copy.kill()
        self.emit_events()
        self.weights.close()
        self.exact.close()
        if self.hosts:
            self.hosts.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the generators and learners, the learners last."""
        generators = [pid for supervisor in self.supervisors for pid in supervisor.pids]
        return generators + self.learners.mesh.pids

    def spawn_generator(self, number: int) -> ActorProcesses:
        """Start the process of generator n; blocks while its host is lost."""
        host = Host(*self.hosts.assign(number, self.queue_event)) if self.hosts else self.controller
        name = f"generator-{number}"
        return ActorProcesses(
            host, name, GeneratorActor, self.config, stopped=lambda: self.queue.closed
        )

    def make_setup(self, number: int, host: Host) -> ActorSetup:
        weights = self.weights.layout if host.is_local else self._copy_weights(host)
        return ActorSetup(
            config=self.config, weights=weights, computed_by=self.computed_by, index=number
        )

    def queue_event(self, kind: str, **details: Any) -> None:
        """Queue an event from any thread; the controller's thread emits it later."""
        self.pending_events.append((kind, details))

    def emit_events(self) -> None:
        while self.pending_events:
            kind, details = self.pending_events.popleft()
            self.event(kind, **details)

    def _write_policy(self, version: int) -> None:
        """Write the weights of the run's policy to the shared files."""
        for weights in dict.fromkeys((self.weights, self.exact)):
            weights.write(version, trainable_tensors(self.policy))

    def _is_verified(self, version: int) -> bool:
        return version % self.config.monarch.verify_every == 0

    def _publish(self, version: int) -> None:
        """Copy the learner's weights to the shared file and to every other host. The run's policy gets them only
        when its state is asked for."""
        started = time.perf_counter()
        self.learners.call("publish", False, self._is_verified(version))
        with self.copies_lock:
            size = self.weights.layout.dtype.itemsize * self.numel
            sent = size * (1 + len(self.copies))
            copies = {name: copy for name, (copy, _) in self.copies.items()}
            for name, reason in self.weights.send(version, copies).items() if copies else ():
                # its generators fail too and are replaced
                text = f"Host {name}: {reason}."
                self.queue_event("fault", host=name, cause="process_died", text=text)
                self.copies.pop(name)[0].kill()
            self.version = version
        seconds = time.perf_counter() - started
        self.timings = {"sync_bytes": float(sent), "sync": round(seconds, 6)}

    def _copy_weights(self, host: Host) -> WeightLayout:
        """Return the file of weights that generators of another host map; sends the weights there first."""
        with self.copies_lock:
            known = self.copies.get(host.name)
            if known and known[0].host.mesh is host.mesh:
                return known[1]
            copy = ActorProcesses(host, f"weights-{host.name}", WeightCopyActor, self.config)
            layout: WeightLayout
            (layout,) = copy.start(self.numel, self.weights.slots, self.weights.layout.dtype)
            for version in self.weights.versions():  # a chunk may still need an older one
                if failures := self.weights.send(version, {host.name: copy}):
                    raise ProcessDied(failures[host.name])
            self.copies[host.name] = copy, layout
            return layout

    def _save_shards(self, folder: Path) -> None:
        self.learners.call("save_shards", str(folder.resolve()))

    def _verify_learners(self) -> None:
        """Check that all ranks hold the weights that were published."""
        if not all(self.learners.call("matches")):
            raise RunError(
                f"The learner processes no longer hold the same weights (version {self.version}). "
                "Run the same command again to resume from the last checkpoint."
            )
