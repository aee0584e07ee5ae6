"""The two kinds of actors: one generates chunks, the other learns. Each has a process of its own.

Constructors do nothing, so that a process can say at once who it is; `open` loads the model. A
user's mistake comes back as a value (`Mistake`), since it is no fault of the process.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from monarch.actor import Actor, current_rank, endpoint

from glasshouse import models as policies
from glasshouse.backends.monarch import parallel_learner, serialization
from glasshouse.backends.monarch.shared_weights import WeightMap, checksum, size, trained
from glasshouse.config import Config
from glasshouse.errors import GlasshouseError
from glasshouse.generate import Sampling, TorchGenerator
from glasshouse.learn import Learner, LearnerState
from glasshouse.models import Policy
from glasshouse.models.lora import add_adapters
from glasshouse.train.build import settle
from glasshouse.types import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an actor needs to begin."""

    config: Config
    weights: str
    """Where the shared weights are mapped."""
    version: int
    meeting: str = ""
    """A file by which several learners find each other."""

    def policy(self) -> tuple[Policy, WeightMap]:
        """The model as the controller has it, and the map of its weights."""
        settle(self.config.threads)
        policy = policies.load(self.config.model)
        if self.config.learn.lora_rank:
            policy = add_adapters(policy, self.config.learn.lora_rank, self.config.seed)
        return policy, WeightMap.open(self.weights, size(policy))


class GeneratorActor(Actor):
    """Generates a chunk at a time, with exactly the version it is told."""

    generator: TorchGenerator
    weights: WeightMap

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, setup: Setup) -> serialization.Mistake | None:
        try:
            policy, self.weights = setup.policy()
        except GlasshouseError as error:
            return serialization.Mistake.of(error)
        self.generator = TorchGenerator(policy, setup.config.generate.kv_cache_mb, version=-1)
        return None

    @endpoint
    def generate(
        self,
        version: int,
        chunk: list[Request],
        sampling: Sampling,
        ends: list[int],
        check: bool,
        reload: bool,
    ) -> serialization.Reply | serialization.Mistake:
        """The chunk's completions. `check`: with the checksum of the weights that made them;
        `reload`: take the weights anew."""
        policy, started = self.generator.policy, time.perf_counter()
        fresh = reload or self.generator.version != version
        if fresh:
            self.weights.read(version, trained(policy))
            self.generator.load(policy.weights(), version)
        seconds = time.perf_counter() - started if fresh else 0.0
        policy.model.generation_config.eos_token_id = ends
        try:
            made = self.generator.generate(chunk, sampling)
        except GlasshouseError as error:
            return serialization.Mistake.of(error)
        digest = checksum(trained(policy)) if check else b""
        return replace(serialization.pack(made, version), digest=digest, load_seconds=seconds)


class LearnerActor(Actor):
    """Holds the optimizer; with several of them, each differentiates its share of the work."""

    learner: Learner
    weights: WeightMap

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, setup: Setup) -> serialization.Mistake | None:
        self.rank, self.ranks = current_rank().rank, setup.config.monarch.learners
        try:
            policy, self.weights = setup.policy()
            self.weights.read(setup.version, trained(policy))
            if self.ranks > 1:
                parallel_learner.meet(setup.meeting, self.rank, self.ranks)
                self.learner = parallel_learner.ParallelLearner.of(policy, setup.config)
            else:
                self.learner = Learner.of(policy, setup.config)
        except GlasshouseError as error:
            return serialization.Mistake.of(error)
        self.learner.version = setup.version
        return None

    @endpoint
    def update(
        self, packed: serialization.Samples
    ) -> tuple[dict[str, float], float] | serialization.Mistake:
        """What happened, and the seconds it took to publish the new weights."""
        try:
            metrics = self.learner.update(serialization.unpack_samples(packed))
        except GlasshouseError as error:
            return serialization.Mistake.of(error)
        started = time.perf_counter()
        if self.rank == 0:
            self.weights.write(self.learner.version, trained(self.learner.policy))
        return metrics, time.perf_counter() - started

    @endpoint
    def checksum(self) -> bytes:
        return checksum(trained(self.learner.policy))

    @endpoint
    def state(self) -> LearnerState | None:
        """Rank 0's: all have the same."""
        return self.learner.state() if self.rank == 0 else None

    @endpoint
    def restore(self, state: LearnerState) -> None:
        """Go on from a state; the weights of its version are in the map."""
        self.weights.read(state.version, trained(self.learner.policy))
        self.learner.restore(state)
