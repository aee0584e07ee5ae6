"""The two kinds of actors: one generates chunks, the other learns. Each runs in its own process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from monarch.actor import current_rank, endpoint
from torch.distributed.checkpoint.api import CheckpointException

from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.processes import ProcessActor
from glasshouse.distributed.monarch.weights import (
    SharedWeights,
    checksum_tensors,
    count_trainable,
    trainable_tensors,
)
from glasshouse.errors import GlasshouseError, RunError
from glasshouse.generate.engines import Generator, engine, make_generator
from glasshouse.learn.learner import Learner
from glasshouse.learn.learner_state import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.learn.parallel_learner import ParallelLearner
from glasshouse.learn.sharded import ShardedLearner, choose_process_group
from glasshouse.models.devices import configure_torch
from glasshouse.models.policy import Policy, choose_device, count_parameters, load_configured_policy
from glasshouse.registry import import_modules
from glasshouse.types import Completion, Request, SamplingParams

GROUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others; the controller notices a dead one much earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetup:
    """What an actor needs in order to load its model."""

    config: Config
    weights_path: str
    """The file of shared weights on the actor's host."""
    index: int = 0
    """The number of a generator; decides its GPU."""
    rendezvous: str = ""
    """The file through which several learners find each other."""

    def load_policy(self, role: str, index: int) -> tuple[Policy, SharedWeights]:
        """Load the same model as the controller, on the device of this role, and map the shared weights."""
        configure_torch(self.config.threads)
        policy = load_configured_policy(self.config, training=True, role=role, index=index)
        return policy, SharedWeights.open(self.weights_path, count_trainable(policy))


class GeneratorActor(ProcessActor):
    """Generates one chunk per call, with exactly the version of the weights that the call names."""

    policy: Policy
    generator: Generator
    weights: SharedWeights
    loaded: tuple[int, bytes] | None = None
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
    ) -> tuple[list[list[Completion]], bytes]:
        """Return the chunk's completions and, if asked, the checksum of the weights that were used."""
        tensors, checksum = trainable_tensors(self.policy), self.weights.checksum(version)
        if (version, checksum) != self.loaded:
            self.loaded = None  # until it is loaded completely
            self.weights.read(version, tensors)
            self.generator.load_weights(self.policy.weights(), version)
            self.loaded = (version, checksum)
        completions = self.generator.generate(chunk, sampling)
        return completions, checksum_tensors(tensors) if with_checksum else b""


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
        group = choose_process_group(
            config.learn.process_group, device, cpu_offload=config.learn.cpu_offload
        )
        policy, self.weights = setup.load_policy("controller", 0)  # whole, on the CPU
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self._join_process_group(setup, group)
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
    def checksum(self) -> bytes:
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
