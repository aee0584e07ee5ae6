"""The local backend: generation and learning in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glasshouse.backends.base import Chunk, ChunkCompletions, PendingCompletions
from glasshouse.config import Config
from glasshouse.generate import SamplingParams, TorchGenerator
from glasshouse.learn import Learner, LearnerState, TrainingSample
from glasshouse.models import Policy


@dataclass(frozen=True, slots=True)
class ReadyCompletions:
    """Completions that have been generated already."""

    completions: ChunkCompletions

    def result(self) -> ChunkCompletions:
        return self.completions


class LocalGeneration:
    """Generates in this process. It has no learner, so it makes no copy of the model to train.

    Example: `LocalGeneration(policy, kv_cache_mb=2048).submit(chunks, sampling, check_interrupt)`
    """

    def __init__(self, policy: Policy, kv_cache_mb: int) -> None:
        self.policy = policy
        self.generator = TorchGenerator(policy, kv_cache_mb)

    def submit(
        self, chunks: Sequence[Chunk], sampling: SamplingParams, check_interrupt: Callable[[], None]
    ) -> PendingCompletions:
        """Generate at once, since an update may change the weights before the result is collected."""
        completions = []
        for chunk in chunks:
            completions.append(self.generator.generate(chunk, sampling))
            check_interrupt()
        return ReadyCompletions(completions)


class LocalBackend(LocalGeneration):
    """Generates and learns in this process."""

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(policy, config.generate.kv_cache_mb)
        self.learner = Learner.from_config(policy, config)

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        metrics = self.learner.update(samples)
        self._sync_weights()
        return metrics

    def timing(self) -> dict[str, float]:
        return {}

    def state(self) -> LearnerState:
        return self.learner.state()

    def restore(self, state: LearnerState) -> None:
        self.learner.restore(state)
        self._sync_weights()

    def close(self) -> None:
        """There is no process to stop."""

    def _sync_weights(self) -> None:
        self.generator.load_weights(self.policy.weights(), self.learner.version)
