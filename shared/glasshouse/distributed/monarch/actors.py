"""The actors, each in its own process: one kind generates chunks, the other learns; and the weights that they share.

The weights are in memory that the processes of a host share, with a copy on each other host:

    header: for each slot, its version and its checksum
    slot 0: every trainable number, flat, float32    with two slots: versions 0, 2, 4 …
    slot 1: the same                                 versions 1, 3, 5 …

The learner writes version v + 1 while generators still read v (with `max_offpolicy_steps`, older versions too: there
is one slot more than steps). The file has no name: its creator holds it open, so nothing remains on disk.

Generators always map a file of their own host. On any host but the learner's, one process holds a copy, and each
version is sent to it once, however many generators run there.
"""

from __future__ import annotations

import mmap
import os
import socket
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO

import numpy as np
import torch
import torch.distributed as dist
from monarch.actor import current_rank, endpoint
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.processes import (
    ActorProcesses,
    ProcessActor,
    ProcessDied,
    open_unnamed_file,
)
from glasshouse.errors import GlasshouseError, RunError
from glasshouse.generate.engines import Generator, engine, make_generator
from glasshouse.learn.learner import Learner, LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.learn.parallel_learner import ParallelLearner
from glasshouse.learn.sharded import ShardedLearner
from glasshouse.models import llama
from glasshouse.models.devices import configure_torch
from glasshouse.models.policy import Policy, choose_device, count_parameters, load_configured_policy
from glasshouse.registry import import_modules
from glasshouse.types import Completion, Request, SamplingParams

HEADER_BYTES = 4096
SLOT_HEADER = np.dtype([("version", np.int64), ("checksum", np.int64)])
EMPTY = -1
"""The version of a slot that holds no complete weights."""


class StaleWeights(RuntimeError):
    """The requested version is not in the shared file."""


class SharedWeights:
    """The weights of the newest versions, one per slot, in a memory-mapped file.

    Example:
        weights = SharedWeights.create(count_trainable(policy))
        weights.write(3, trainable_tensors(policy))
        # in another process
        SharedWeights.open(weights.path, weights.numel).read(3, trainable_tensors(other))
    """

    def __init__(self, file: IO[bytes], path: str, numel: int) -> None:
        size = os.fstat(file.fileno()).st_size
        self.file, self.path, self.numel = file, path, numel
        self.slots = (size - HEADER_BYTES) // (4 * numel)
        memory = mmap.mmap(file.fileno(), size)
        self.headers = np.frombuffer(memory, SLOT_HEADER, self.slots)
        flat = torch.frombuffer(memory, dtype=torch.float32, offset=HEADER_BYTES)
        self.numbers = flat.view(self.slots, numel)

    @classmethod
    def create(cls, numel: int, slots: int = 2) -> SharedWeights:
        shm = Path("/dev/shm")
        file, path = open_unnamed_file(shm if os.access(shm, os.W_OK) else None)
        file.truncate(HEADER_BYTES + 4 * numel * slots)
        weights = cls(file, path, numel)
        weights.headers["version"] = EMPTY
        return weights

    @classmethod
    def open(cls, path: str, numel: int) -> SharedWeights:
        return cls(open(path, "r+b"), path, numel)

    def write(self, version: int, tensors: Iterable[Tensor]) -> None:
        """Write a version to its slot, over the oldest one."""
        slot, start = version % self.slots, 0
        self.headers["version"][slot] = EMPTY
        checksum = 0
        for tensor in tensors:
            self.numbers[slot, start : start + tensor.numel()] = tensor.detach().reshape(-1)
            start += tensor.numel()
            checksum = _add_to_checksum(checksum, tensor)
        self.headers["checksum"][slot] = checksum
        self.headers["version"][slot] = version

    def read(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Copy a version into the tensors."""
        flat, start = self.numbers[self._find_slot(version)], 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()
        self._find_slot(version)  # raises if it was overwritten meanwhile

    def checksum(self, version: int) -> int:
        """Return the checksum that the writer computed from its own tensors."""
        return int(self.headers["checksum"][self._find_slot(version)])

    def versions(self) -> list[int]:
        """Return the versions in the file, oldest first."""
        return sorted(version for version in self.headers["version"].tolist() if version != EMPTY)

    def send(self, version: int, copies: Mapping[str, ActorProcesses]) -> dict[str, str]:
        """Send a version to the copies on other hosts; return why, for each host that did not get it."""
        raw = self.numbers[self._find_slot(version)].numpy().tobytes()
        checksum = self.checksum(version)
        calls = {h: copy.actor.write.call(version, checksum, raw) for h, copy in copies.items()}
        failures: dict[str, str] = {}
        for host, call in calls.items():
            try:
                copies[host].wait(call, "spawn_timeout")
            except ProcessDied as error:
                failures[host] = str(error)
        return failures

    def close(self) -> None:
        self.file.close()  # the mapping is freed with its last tensor

    def _find_slot(self, version: int) -> int:
        slot = version % self.slots
        if self.headers["version"][slot] != version:
            raise StaleWeights(
                f"Version {version} of the weights was requested; the slot holds "
                f"{self.headers['version'][slot]}."
            )
        return slot


class WeightCopyActor(ProcessActor):
    """Holds the copy of a host."""

    weights: SharedWeights

    @endpoint
    def open(self, numel: int, slots: int) -> str:
        self.weights = SharedWeights.create(numel, slots)
        return self.weights.path

    @endpoint
    def write(self, version: int, checksum: int, raw: bytes) -> None:
        self.weights.write(version, [torch.frombuffer(bytearray(raw), dtype=torch.float32)])
        if self.weights.checksum(version) != checksum:
            raise ValueError(f"Version {version} of the weights was damaged on its way.")


def trainable_tensors(policy: Policy) -> list[Tensor]:
    """Return the tensors that training changes, in the model's order; no others are sent."""
    return [p for p in policy.model.parameters() if p.requires_grad]


def count_trainable(policy: Policy) -> int:
    return sum(p.numel() for p in trainable_tensors(policy))


def checksum_tensors(tensors: Iterable[Tensor]) -> int:
    """Return the CRC-32 of the bytes of all tensors, in order: 4 GB per second, where blake2b has 0.9."""
    checksum = 0
    for tensor in tensors:
        checksum = _add_to_checksum(checksum, tensor)
    return checksum


def _add_to_checksum(checksum: int, tensor: Tensor) -> int:
    return zlib.crc32(np.ascontiguousarray(tensor.detach().cpu().numpy()).data, checksum)


GROUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others; the controller notices a dead one much earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetup:
    """What an actor needs in order to load its model."""

    config: Config
    weights_path: str
    """The file of shared weights on the actor's host."""
    computed_by: str
    """What computes the model in the controller; an actor that would compute it by something else raises."""
    index: int = 0
    """The number of a generator; decides its GPU."""
    rendezvous: str = ""
    """The file through which several learners find each other."""

    def load_policy(self, role: str, index: int) -> tuple[Policy, SharedWeights]:
        """Load the same model as the controller, on the device of this role, and map the shared weights."""
        configure_torch(self.config.threads)
        policy = load_configured_policy(self.config, training=True, role=role, index=index)
        computed_by = llama.describe_path(policy.model, policy.dtype)
        if policy.device.type == "cpu" and computed_by.split()[0] != self.computed_by.split()[0]:
            raise RunError(
                f"A process of the run on {socket.gethostname()} is computed by {computed_by}, the controller by "
                f"{self.computed_by}: other numbers. Install a C compiler there."
            )
        return policy, SharedWeights.open(self.weights_path, count_trainable(policy))


class GeneratorActor(ProcessActor):
    """Generates one chunk per call, with exactly the version of the weights that the call names."""

    policy: Policy
    generator: Generator
    weights: SharedWeights
    loaded: tuple[int, int] | None = None
    """The version that the generator has loaded, and the learner's checksum of it."""

    @endpoint
    def open(self, setup: ActorSetup) -> None:
        if setup.config.generate.engine not in engine:
            import_modules(setup.config.imports)  # one of them may register the engine
        self.policy, self.weights = setup.load_policy("generator", setup.index)
        self.generator = make_generator(self.policy, setup.config.generate)

    @endpoint
    def generate(
        self, version: int, chunk: list[Request], sampling: SamplingParams, with_checksum: bool
    ) -> tuple[list[list[Completion]], int | None]:
        """Return the chunk's completions and, if asked, the checksum of the weights that were used."""
        tensors, checksum = trainable_tensors(self.policy), self.weights.checksum(version)
        if (version, checksum) != self.loaded:
            self.loaded = None  # until it is loaded completely
            self.weights.read(version, tensors)
            self.generator.load_weights(self.policy.weights(), version)
            self.loaded = (version, checksum)
        completions = self.generator.generate(chunk, sampling)
        return completions, checksum_tensors(tensors) if with_checksum else None


class LearnerActor(ProcessActor):
    """Holds the optimizer. One of several learners computes the gradients of its share of a step; with
    `learn.sharding` it also holds only its share of the weights and the optimizer's state."""

    learner: Learner
    weights: SharedWeights

    @endpoint
    def open(self, setup: ActorSetup) -> None:
        """All ranks start from version 0; `restore` continues from another."""
        config, self.rank = setup.config, current_rank().rank
        if config.learn.sharding == "fsdp":
            self._open_sharded(setup)
            return
        policy, self.weights = setup.load_policy("learner", self.rank)
        self.weights.read(0, trainable_tensors(policy))
        if config.monarch.learners > 1:
            self._join_process_group(setup)
            self.learner = ParallelLearner.from_config(policy, config)
        else:
            self.learner = Learner.from_config(policy, config)

    def _open_sharded(self, setup: ActorSetup) -> None:
        config = setup.config
        device = choose_device(config, count_parameters(config.model), "learner", self.rank)
        policy, self.weights = setup.load_policy("controller", 0)  # whole, on the CPU
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self._join_process_group(setup, "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        self.learner = ShardedLearner.from_config(policy, config, device=device)

    def _join_process_group(self, setup: ActorSetup, backend: str = "gloo") -> None:
        """Meet the other learners through a file, which is not needed after this returns."""
        size = setup.config.monarch.learners
        store = dist.FileStore(setup.rendezvous, size)
        dist.init_process_group(
            backend, store=store, rank=self.rank, world_size=size, timeout=GROUP_TIMEOUT
        )
        dist.barrier()

    @endpoint
    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        return self.learner.update(samples)

    @endpoint
    def publish(self) -> None:
        """Write the weights to the shared file. Gathering them needs all ranks; one writes."""
        tensors = self.learner.whole_tensors()
        if self.rank == 0:
            self.weights.write(self.learner.version, tensors)
        else:
            deque(tensors, maxlen=0)

    @endpoint
    def checksum(self) -> int:
        return checksum_tensors(self.learner.whole_tensors())

    @endpoint
    def state(self) -> LearnerState | None:
        """Return the state of rank 0; all ranks hold the same."""
        return self.learner.state() if self.rank == 0 else None

    @endpoint
    def restore(self, state: LearnerState) -> None:
        """Continue from a state whose weights are in the shared file or, of a sharded learner, in a checkpoint."""
        if not state.folder:
            self.weights.read(state.version, trainable_tensors(self.learner.policy))
        self.learner.restore(state)

    @endpoint
    def save_shards(self, folder: str) -> None:
        """Write this rank's part of a sharded learner's state to the folder of a checkpoint."""
        save_shards = self.learner.state().save_shards
        assert save_shards is not None
        try:
            save_shards(Path(folder))
        except (GlasshouseError, OSError, CheckpointException) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise RunError(
                f"Rank {self.rank} of the learner could not write to {folder}: {reason}."
            ) from None
