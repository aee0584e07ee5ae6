"""Generation in this process, for evaluation and for the local backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glasshouse.config.schema import GenerateConfig
from glasshouse.generate.engines import make_generator
from glasshouse.models.policy import Policy
from glasshouse.types import Completion, Request, SamplingParams


@dataclass(frozen=True, slots=True)
class ReadyCompletions:
    """Completions that have been generated already."""

    completions: list[list[list[Completion]]]

    def result(self) -> list[list[list[Completion]]]:
        return self.completions


class LocalGeneration:
    """Generates in this process. It has no learner, so it makes no copy of the model to train.

    Example: `LocalGeneration(policy, config.generate).submit(chunks, sampling, check_interrupt)`
    """

    def __init__(self, policy: Policy, config: GenerateConfig) -> None:
        self.policy = policy
        self.generator = make_generator(policy, config)

    def submit(
        self,
        chunks: Sequence[list[Request]],
        sampling: SamplingParams,
        check_interrupt: Callable[[], None],
    ) -> ReadyCompletions:
        """Generate at once, since an update may change the weights before the result is collected."""
        completions = []
        for chunk in chunks:
            completions.append(self.generator.generate(chunk, sampling))
            check_interrupt()
        return ReadyCompletions(completions)
