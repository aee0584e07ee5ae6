"""The two kinds of actors: one generates chunks, the other learns. Each runs in its own process.

Constructors do nothing, so that a new process can report its id at once; `open` loads the model.
An error of the user is returned as a value (`RemoteUserError`), because the process itself is fine.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from monarch.actor import Actor, current_rank, endpoint
from torch.distributed.checkpoint.api import CheckpointException

from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.messages import ChunkReply, RemoteUserError
from glasshouse.distributed.monarch.shared_weights import (
    SharedWeights,
    checksum_tensors,
    count_trainable,
    trainable_tensors,
)
from glasshouse.errors import GlasshouseError, RunError
from glasshouse.generate.engines import Generator, engine, make_generator
from glasshouse.learn import parallel_learner, sharded
from glasshouse.learn.learner import Learner
from glasshouse.learn.learner_state import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.devices import configure_torch
from glasshouse.models.policy import Policy, choose_device, count_parameters, load_configured_policy
from glasshouse.registry import import_modules
from glasshouse.types import Request, SamplingParams

GROUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others; the controller notices a dead one much earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetup:
    """What an actor needs in order to load its model."""

    config: Config
    weights_path: str
    """The file of shared weights on the actor's host."""
    version: int
    index: int = 0
    """The number of the process among those of its role; decides its GPU."""
    rendezvous: str = ""
    """The file through which several learners find each other."""

    def load_policy(self, role: str) -> tuple[Policy, SharedWeights]:
        """Load the same model as the controller, on the device of this role, and map the shared weights."""
        configure_torch(self.config.threads)
        policy = load_configured_policy(self.config, training=True, role=role, index=self.index)
        return policy, SharedWeights.open(self.weights_path, count_trainable(policy))


def join_process_group(file: str, rank: int, world_size: int, backend: str = "gloo") -> None:
    """Meet the other learners through a file, which is not needed after this returns."""
    store = dist.FileStore(file, world_size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=GROUP_TIMEOUT
    )
    dist.barrier()


class GeneratorActor(Actor):
    """Generates one chunk per call, with exactly the version of the weights that the call names."""

    policy: Policy
    generator: Generator
    weights: SharedWeights
    version: int | None = None
    """The version that the generator has loaded."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, setup: ActorSetup) -> RemoteUserError | None:
        try:
            if setup.config.generate.engine not in engine:
                import_modules(setup.config.imports)  # one of them may register the engine
            self.policy, self.weights = setup.load_policy("generator")
            self.generator = make_generator(self.policy, setup.config.generate)
        except GlasshouseError as error:
            return RemoteUserError.from_error(error)
        return None

    @endpoint
    def generate(
        self,
        version: int,
        chunk: list[Request],
        sampling: SamplingParams,
        end_tokens: list[int],
        with_checksum: bool,
        reload: bool,
    ) -> ChunkReply | RemoteUserError:
        """Generate the chunk's completions.

        `with_checksum` adds the checksum of the weights that were used; `reload` reads the weights
        again even if their version is already loaded.
        """
        policy, started = self.policy, time.perf_counter()
        load = reload or self.version != version
        if load:
            self.version = None  # until it is loaded completely
            self.weights.read(version, trainable_tensors(policy))
            self.generator.load_weights(policy.weights(), version)
            self.version = version
        seconds = time.perf_counter() - started if load else 0.0
        policy.model.generation_config.eos_token_id = end_tokens
        try:
            completions = self.generator.generate(chunk, sampling)
        except GlasshouseError as error:
            return RemoteUserError.from_error(error)
        checksum = checksum_tensors(trainable_tensors(policy)) if with_checksum else b""
        return ChunkReply(completions=completions, checksum=checksum, load_seconds=seconds)


class LearnerActor(Actor):
    """Holds the optimizer. One of several learners computes the gradients of its share of a step; with
    `learn.sharding` it also holds only its share of the weights and the optimizer's state."""

    learner: Learner
    weights: SharedWeights

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, setup: ActorSetup) -> RemoteUserError | None:
        self.rank, world_size = current_rank().rank, setup.config.monarch.learners
        setup = replace(setup, index=self.rank)
        try:
            if setup.config.learn.sharding == "fsdp":
                self._open_sharded(setup, world_size)
                return None
            policy, self.weights = setup.load_policy("learner")
            self.weights.read(setup.version, trainable_tensors(policy))
            if world_size > 1:
                join_process_group(setup.rendezvous, self.rank, world_size)
                self.learner = parallel_learner.ParallelLearner.from_config(policy, setup.config)
            else:
                self.learner = Learner.from_config(policy, setup.config)
        except GlasshouseError as error:
            return RemoteUserError.from_error(error)
        self.learner.version = setup.version
        return None

    def _open_sharded(self, setup: ActorSetup, world_size: int) -> None:
        """The ranks start from the model's own weights; `restore` loads others from a checkpoint."""
        config = setup.config
        device = choose_device(config, count_parameters(config.model), "learner", setup.index)
        group = sharded.choose_process_group(
            config.learn.process_group, device, cpu_offload=config.learn.cpu_offload
        )
        configure_torch(config.threads)
        policy = load_configured_policy(config, training=True, role="controller")
        if self.rank == 0:  # it gathers and publishes the weights
            self.weights = SharedWeights.open(setup.weights_path, count_trainable(policy))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        join_process_group(setup.rendezvous, self.rank, world_size, group)
        self.learner = sharded.ShardedLearner.from_config(policy, config, device=device)

    def _write_weights(self) -> None:
        """Publish the weights of the learner's version in the shared file."""
        learner = self.learner
        if isinstance(learner, sharded.ShardedLearner):
            tensors = learner.whole_tensors()  # all ranks gather, one writes
            if self.rank == 0:
                self.weights.write(learner.version, tensors)
            else:
                deque(tensors, maxlen=0)
        elif self.rank == 0:
            self.weights.write(learner.version, trainable_tensors(learner.policy))

    @endpoint
    def update(
        self, samples: list[TrainingSample]
    ) -> tuple[dict[str, float], float] | RemoteUserError:
        """Take one update; return its metrics and the seconds needed to publish the new weights."""
        try:
            metrics = self.learner.update(samples)
        except GlasshouseError as error:
            return RemoteUserError.from_error(error)
        started = time.perf_counter()
        self._write_weights()
        return metrics, time.perf_counter() - started

    @endpoint
    def checksum(self) -> bytes:
        learner = self.learner
        if isinstance(learner, sharded.ShardedLearner):
            return checksum_tensors(learner.whole_tensors())
        return checksum_tensors(trainable_tensors(learner.policy))

    @endpoint
    def state(self) -> LearnerState | None:
        """Return the state of rank 0; all ranks hold the same."""
        return self.learner.state() if self.rank == 0 else None

    @endpoint
    def restore(self, state: LearnerState) -> None:
        """Continue from a state whose weights are in the shared file."""
        self.weights.read(state.version, trainable_tensors(self.learner.policy))
        self.learner.restore(state)

    @endpoint
    def publish(self) -> None:
        """Write the weights to the shared file. No other rank may be reading them."""
        self._write_weights()

    @endpoint
    def save_shards(self, folder: str) -> RemoteUserError | None:
        """Write this rank's part of a sharded learner's state to the folder of a checkpoint."""
        save_shards = self.learner.state().save_shards
        assert save_shards is not None
        try:
            save_shards(Path(folder))
        except (GlasshouseError, OSError, CheckpointException) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            text = f"Rank {self.rank} of the learner could not write to {folder}: {reason}."
            return RemoteUserError.from_error(RunError(text))
        return None

    @endpoint
    def load_shards(self, version: int, folder: str) -> RemoteUserError | None:
        """Continue from a checkpoint, of which this rank reads its parts."""
        try:
            self.learner.restore(LearnerState(version, {}, folder=Path(folder)))
        except GlasshouseError as error:
            return RemoteUserError.from_error(error)
        self._write_weights()
        return None
