"""The two kinds of actors: one generates chunks, the other learns. Each runs in its own process.

Constructors do nothing, so that a new process can report its id at once; `open` loads the model.
An error of the user is returned as a value (`RemoteUserError`), because the process itself is fine.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from monarch.actor import Actor, current_rank, endpoint

from glasshouse.backends.monarch import parallel_learner, serialization
from glasshouse.backends.monarch.shared_weights import (
    SharedWeights,
    checksum_tensors,
    count_trainable,
    trainable_tensors,
)
from glasshouse.backends.torch_setup import configure_torch
from glasshouse.config import Config, import_modules
from glasshouse.errors import GlasshouseError
from glasshouse.generate import ENGINES, Generator, SamplingParams, make_generator
from glasshouse.learn import Learner, LearnerState
from glasshouse.models import Policy, load_configured_policy
from glasshouse.types import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSetup:
    """What an actor needs in order to load its model."""

    config: Config
    weights_path: str
    """The file of shared weights on the actor's host."""
    version: int
    index: int = 0
    """The number of the process among those of its role; decides its GPU."""
    rendezvous_file: str = ""
    """The file through which several learners find each other."""

    def load_policy(self, role: str) -> tuple[Policy, SharedWeights]:
        """Load the same model as the controller, on the device of this role, and map the shared weights."""
        configure_torch(self.config.threads)
        policy = load_configured_policy(self.config, training=True, role=role, index=self.index)
        return policy, SharedWeights.open(self.weights_path, count_trainable(policy))


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
    def open(self, setup: ActorSetup) -> serialization.RemoteUserError | None:
        try:
            if setup.config.generate.engine not in (*ENGINES, "vllm"):
                import_modules(setup.config.imports)  # one of them may register the engine
            self.policy, self.weights = setup.load_policy("generator")
            self.generator = make_generator(self.policy, setup.config.generate)
        except GlasshouseError as error:
            return serialization.RemoteUserError.from_error(error)
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
    ) -> serialization.ChunkReply | serialization.RemoteUserError:
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
            return serialization.RemoteUserError.from_error(error)
        checksum = checksum_tensors(trainable_tensors(policy)) if with_checksum else b""
        return replace(
            serialization.pack_completions(completions, version),
            checksum=checksum,
            load_seconds=seconds,
        )


class LearnerActor(Actor):
    """Holds the optimizer. One of several learners computes the gradients of its share of a step."""

    learner: Learner
    weights: SharedWeights

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, setup: ActorSetup) -> serialization.RemoteUserError | None:
        self.rank, world_size = current_rank().rank, setup.config.monarch.learners
        try:
            setup = replace(setup, index=self.rank)
            policy, self.weights = setup.load_policy("learner")
            self.weights.read(setup.version, trainable_tensors(policy))
            if world_size > 1:
                parallel_learner.join_process_group(setup.rendezvous_file, self.rank, world_size)
                self.learner = parallel_learner.ParallelLearner.from_config(policy, setup.config)
            else:
                self.learner = Learner.from_config(policy, setup.config)
        except GlasshouseError as error:
            return serialization.RemoteUserError.from_error(error)
        self.learner.version = setup.version
        return None

    @endpoint
    def update(
        self, packed: serialization.PackedSamples
    ) -> tuple[dict[str, float], float] | serialization.RemoteUserError:
        """Take one update; return its metrics and the seconds needed to publish the new weights."""
        try:
            metrics = self.learner.update(serialization.unpack_samples(packed))
        except GlasshouseError as error:
            return serialization.RemoteUserError.from_error(error)
        started = time.perf_counter()
        if self.rank == 0:
            self.weights.write(self.learner.version, trainable_tensors(self.learner.policy))
        return metrics, time.perf_counter() - started

    @endpoint
    def checksum(self) -> bytes:
        return checksum_tensors(trainable_tensors(self.learner.policy))

    @endpoint
    def state(self) -> LearnerState | None:
        """Return the state of rank 0; all ranks hold the same."""
        return self.learner.state() if self.rank == 0 else None

    @endpoint
    def restore(self, state: LearnerState) -> None:
        """Continue from a state whose weights are in the shared file."""
        self.weights.read(state.version, trainable_tensors(self.learner.policy))
        self.learner.restore(state)
