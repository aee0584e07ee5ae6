"""The actors, each in its own process: one kind generates chunks, the other learns; and the weights that they share.

The weights are in memory that the processes of a host share, with a copy on each other host:

    header: for each slot, its version, the number of the write, and its checksum
    slot 0: every trainable number, flat    with two slots: versions 0, 2, 4 …
    slot 1: the same                        versions 1, 3, 5 …

The learner writes version v + 1 while generators still read v (with `max_offpolicy_steps`, older versions too: there
is one slot more than steps). The file has no name: its creator holds it open, so nothing remains on disk.

The numbers have the dtype that generators compute with. If that is not float32, a second file of one slot holds the
exact weights, for a checkpoint or a restored run; the controller reads weights only then.

Generators always map a file of their own host. On any host but the learner's, one process holds a copy, and each
version is sent to it once, however many generators run there. Every `monarch.verify_every` versions the learner
computes the checksum of its own tensors, with which all processes compare theirs.
"""

from __future__ import annotations

import mmap
import os
import socket
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

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
SLOT_HEADER = np.dtype([(name, np.int64) for name in ("version", "write", "checksum")])
EMPTY = -1
"""The version of a slot that holds no complete weights, and the checksum of one that has none."""


class StaleWeights(RuntimeError):
    """The requested version is not in the shared file."""


class WeightLayout(NamedTuple):
    """What a process needs in order to map a file of weights."""

    path: str
    slots: int
    dtype: torch.dtype


class SharedWeights:
    """The weights of the newest versions, one per slot, in a memory-mapped file.

    Example:
        weights = SharedWeights.create(count_trainable(policy))
        weights.write(3, trainable_tensors(policy))
        # in another process
        SharedWeights.open(weights.layout).read(3, trainable_tensors(other))
    """

    def __init__(self, file: IO[bytes], layout: WeightLayout) -> None:
        self.file, self.layout, self.slots = file, layout, layout.slots
        memory = mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size)
        self.headers = np.frombuffer(memory, SLOT_HEADER, layout.slots)
        self.bytes = np.frombuffer(memory, np.uint8, offset=HEADER_BYTES).reshape(layout.slots, -1)
        self.numbers = torch.from_numpy(self.bytes).view(layout.dtype)

    @classmethod
    def create(
        cls, numel: int, slots: int = 2, dtype: torch.dtype = torch.float32
    ) -> SharedWeights:
        shm = Path("/dev/shm")
        file, path = open_unnamed_file(shm if os.access(shm, os.W_OK) else None)
        file.truncate(HEADER_BYTES + dtype.itemsize * numel * slots)
        weights = cls(file, WeightLayout(path, slots, dtype))
        weights.headers["version"] = EMPTY
        return weights

    @classmethod
    def open(cls, layout: WeightLayout) -> SharedWeights:
        return cls(open(layout.path, "r+b"), layout)

    def write(self, version: int, tensors: Iterable[Tensor], *, verify: bool = True) -> None:
        """Write a version to its slot, over the oldest one; with `verify`, also the checksum of the tensors."""
        header, checksum = self._clear_slot(version), 0
        for part, tensor in self._parts(version, tensors):
            part.copy_(tensor.detach())
            checksum = self._add_to_checksum(checksum, tensor) if verify else EMPTY
        self._complete_slot(header, version, checksum)

    def write_bytes(self, version: int, raw: bytes, checksum: int) -> None:
        """Write a version as another file held it."""
        header = self._clear_slot(version)
        self.bytes[version % self.slots] = np.frombuffer(raw, np.uint8)
        self._complete_slot(header, version, checksum)

    def _clear_slot(self, version: int) -> Any:
        header = self.headers[version % self.slots]
        header["version"] = EMPTY
        return header

    def _complete_slot(self, header: Any, version: int, checksum: int) -> None:
        header["checksum"], header["write"] = checksum, self.headers["write"].max() + 1
        header["version"] = version

    def _parts(self, version: int, tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor, with its part of the version's slot in the same shape."""
        slot, start = self.numbers[version % self.slots], 0
        for tensor in tensors:
            end = start + tensor.numel()
            yield slot[start:end].view(tensor.shape), tensor
            start = end

    def _add_to_checksum(self, checksum: int, tensor: Tensor) -> int:
        """CRC-32 of the numbers as the file holds them: 0.25 s of CPU per GB, where blake2b takes 1.15."""
        numbers = tensor.detach().cpu().to(self.layout.dtype).reshape(-1)
        return zlib.crc32(numbers.view(torch.uint8).numpy().data, checksum)

    def read(self, version: int, tensors: Sequence[Tensor]) -> None:
        """Copy a version into the tensors."""
        self.find(version)
        with torch.no_grad():
            for part, tensor in self._parts(version, tensors):
                tensor.copy_(part)
        self.find(version)  # raises if it was overwritten meanwhile

    def matches(self, version: int, tensors: Iterable[Tensor]) -> bool:
        """Whether these are the tensors that were written: by their checksum, if the version has one, else by
        comparison with the file. Reads all of them, since ranks of a divided learner gather them together."""
        expected, checksum, is_equal = self.find(version)["checksum"], 0, True
        for part, tensor in self._parts(version, tensors):
            if expected == EMPTY:
                is_equal &= part.equal(tensor.detach().cpu().to(part.dtype))
            else:
                checksum = self._add_to_checksum(checksum, tensor)
        return is_equal if expected == EMPTY else checksum == expected

    def find(self, version: int) -> Any:
        """The header of a version; raises if the file does not hold it."""
        header = self.headers[version % self.slots]
        if header["version"] != version:
            raise StaleWeights(
                f"Version {version} of the weights was requested; the slot holds {header['version']}."
            )
        return header

    def versions(self) -> list[int]:
        """Return the versions in the file, oldest first."""
        return sorted(version for version in self.headers["version"].tolist() if version != EMPTY)

    def send(self, version: int, copies: Mapping[str, ActorProcesses]) -> dict[str, str]:
        """Send a version to the copies on other hosts; return why, for each host that did not get it."""
        checksum = int(self.find(version)["checksum"])
        raw = self.bytes[version % self.slots].tobytes()
        calls = {h: copy.actor.write.call(version, raw, checksum) for h, copy in copies.items()}
        failures: dict[str, str] = {}
        for host, call in calls.items():
            try:
                copies[host].wait(call, "spawn_timeout")
            except ProcessDied as error:
                failures[host] = str(error)
        return failures

    def close(self) -> None:
        self.file.close()  # the mapping is freed with its last tensor


class WeightCopyActor(ProcessActor):
    """Holds the copy of a host."""

    weights: SharedWeights

    @endpoint
    def open(self, numel: int, slots: int, dtype: torch.dtype) -> WeightLayout:
        self.weights = SharedWeights.create(numel, slots, dtype)
        return self.weights.layout

    @endpoint
    def write(self, version: int, raw: bytes, checksum: int) -> None:
        if checksum not in (EMPTY, zlib.crc32(raw)):
            raise ValueError(f"Version {version} of the weights was damaged on its way.")
        self.weights.write_bytes(version, raw, checksum)


def trainable_tensors(policy: Policy) -> list[Tensor]:
    """Return the tensors that training changes, in the model's order; no others are sent."""
    return [p for p in policy.model.parameters() if p.requires_grad]


def count_trainable(policy: Policy) -> int:
    return sum(p.numel() for p in trainable_tensors(policy))


def published_dtype(policy: Policy) -> torch.dtype:
    """The dtype that generators compute with. Adapters, which are merged in float32, and transformers' forward pass,
    which rounds only in matrix products, need float32."""
    rounds_all = llama.is_supported(policy.model) and not hasattr(policy.model, "peft_config")
    return policy.dtype if rounds_all else torch.float32


GROUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others; the controller notices a dead one much earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetup:
    """What an actor needs in order to load its model."""

    config: Config
    weights: WeightLayout
    """The file of shared weights on the actor's host; for a learner that of the exact ones, and `published`."""
    computed_by: str
    """What computes the model in the controller; an actor that would compute it by something else raises."""
    index: int = 0
    """The number of a generator; decides its GPU."""
    published: WeightLayout | None = None
    """The file that a learner writes for generators."""
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
        return policy, SharedWeights.open(self.weights)


class GeneratorActor(ProcessActor):
    """Generates one chunk per call, with exactly the version of the weights that the call names."""

    policy: Policy
    generator: Generator
    weights: SharedWeights
    loaded: tuple[int, int] | None = None
    """The version that the generator has loaded, and the number of its write."""

    @endpoint
    def open(self, setup: ActorSetup) -> None:
        if setup.config.generate.engine not in engine:
            import_modules(setup.config.imports)  # one of them may register the engine
        self.policy, self.weights = setup.load_policy("generator", setup.index)
        self.generator = make_generator(self.policy, setup.config.generate)

    @endpoint
    def generate(
        self, version: int, chunk: list[Request], sampling: SamplingParams, verify: bool
    ) -> tuple[list[list[Completion]], bool]:
        """Return the chunk's completions and, if asked, whether the weights that were used are the learner's."""
        found = version, int(self.weights.find(version)["write"])
        tensors = trainable_tensors(self.policy)
        if found != self.loaded:
            self.loaded = None  # until it is loaded completely
            self.weights.read(version, tensors)
            self.generator.load_weights(self.policy.weights(), version)
            self.loaded = found
        completions = self.generator.generate(chunk, sampling)
        return completions, not verify or self.weights.matches(version, tensors)


class LearnerActor(ProcessActor):
    """Holds the optimizer. One of several learners computes the gradients of its share of a step; with
    `learn.sharding` it also holds only its share of the weights and the optimizer's state."""

    learner: Learner
    weights: SharedWeights

    @endpoint
    def open(self, setup: ActorSetup) -> None:
        """All ranks start from version 0; `restore` continues from another."""
        config, self.rank = setup.config, current_rank().rank
        assert setup.published is not None
        self.published = SharedWeights.open(setup.published)
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
    def publish(self, exact: bool, verify: bool) -> None:
        """Write the weights to a shared file: for generators, or exactly. Gathering them needs all ranks; one
        writes."""
        tensors = self.learner.whole_tensors()
        if self.rank == 0:
            file = self.weights if exact else self.published
            file.write(self.learner.version, tensors, verify=verify)
        else:
            deque(tensors, maxlen=0)

    @endpoint
    def matches(self) -> bool:
        """Whether this rank's weights are those that were published."""
        return self.published.matches(self.learner.version, self.learner.whole_tensors())

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
