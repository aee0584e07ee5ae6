"""Where a run's work is done: all in this process, or spread over others.

The loop hands out chunks of requests and batches of samples; it does not know who computes them.
A chunk is always the same requests in the same order, so that its bits do not depend on who ran it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from glasshouse.config import Config
from glasshouse.generate import Sampling, TorchGenerator
from glasshouse.learn import Learner, LearnerState, Sample
from glasshouse.models import Policy
from glasshouse.types import Completion, Request

Chunk = list[Request]


class Event(Protocol):
    """Told of what happens outside the loop's sight: `event("fault", generator=1, text=…)`."""

    def __call__(self, kind: str, **what: Any) -> None: ...


class Pending(Protocol):
    """Chunks that are being generated."""

    def result(self) -> list[list[list[Completion]]]:
        """For each chunk, for each request, its completions, once they are there."""


class Placement(Protocol):
    """Generators and a learner, wherever they are."""

    def start(
        self, chunks: Sequence[Chunk], sampling: Sampling, between: Callable[[], None]
    ) -> Pending:
        """Begin to generate with the weights of this moment; at most one update may follow before
        its result is taken. `between` is called as in `generate`."""

    def generate(
        self, chunks: Sequence[Chunk], sampling: Sampling, between: Callable[[], None]
    ) -> list[list[list[Completion]]]:
        """For each chunk, for each request, its completions. `between` is called whenever nothing
        is half done; what it raises ends the call."""

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One step of learning; after it every generator has the new weights, under a new version."""

    def timing(self) -> dict[str, float]:
        """Seconds and bytes that the last update took to reach the generators, for the log."""

    def state(self) -> LearnerState:
        """Everything the learner needs to go on; the weights are in the run's policy then."""

    def restore(self, state: LearnerState) -> None:
        """Go on from a state and from the weights that the run's policy has now."""

    def close(self) -> None:
        """End whatever was started."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was generated already."""

    completions: list[list[list[Completion]]]

    def result(self) -> list[list[list[Completion]]]:
        return self.completions


def place(policy: Policy, config: Config, event: Event) -> Placement:
    """As the configuration says."""
    if config.backend == "local":
        return Inline(policy, config)
    # an extra; imported when it is asked for
    if config.hosts.kind == "local":
        from glasshouse.backends.monarch import Monarch

        return Monarch(policy, config, event)
    from glasshouse.backends.hosts.security import tell_monarch

    tell_monarch()  # before Monarch is imported: a lost host is to be noticed within 5 s
    from glasshouse.backends.hosts.multi_host import OnHosts

    return OnHosts(policy, config, event)


class Inline:
    """Everything in this process.

    Example: `Inline(policy, config).generate(chunks, sampling, between)`
    """

    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy = policy
        self.generator = TorchGenerator(policy, config.generate.kv_cache_mb)
        self.learner = Learner.of(policy, config)

    def start(
        self, chunks: Sequence[Chunk], sampling: Sampling, between: Callable[[], None]
    ) -> Pending:
        """At once: the weights may change right after."""
        done = []
        for chunk in chunks:
            done.append(self.generator.generate(chunk, sampling))
            between()
        return Done(done)

    def generate(
        self, chunks: Sequence[Chunk], sampling: Sampling, between: Callable[[], None]
    ) -> list[list[list[Completion]]]:
        return self.start(chunks, sampling, between).result()

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        metrics = self.learner.update(samples)
        self._hand_over()
        return metrics

    def timing(self) -> dict[str, float]:
        return {}

    def state(self) -> LearnerState:
        return self.learner.state()

    def restore(self, state: LearnerState) -> None:
        self.learner.restore(state)
        self._hand_over()

    def close(self) -> None:
        """Nothing was started."""

    def _hand_over(self) -> None:
        self.generator.load(self.policy.weights(), self.learner.version)
