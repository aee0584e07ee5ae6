"""The backend protocols: where completions are generated and where the model is updated.

The training loop submits chunks of requests and batches of samples; it does not know which process
computes them. A chunk always holds the same requests in the same order, so that its completions do
not depend on who generated them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from glasshouse.learn.learner_state import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.rollout.collector import Sampler


class EventSink(Protocol):
    """Receives what happens inside a backend: `event("fault", generator=1, text=…)`."""

    def __call__(self, kind: str, **details: Any) -> None: ...


class Backend(Sampler, Protocol):
    """Generators and a learner."""

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Update the model and send the new weights, with a new version, to every generator."""

    def timing(self) -> dict[str, Any]:
        """Seconds and bytes of the last weight sync, for the metrics."""

    def state(self) -> LearnerState:
        """Return the learner's state, and copy the current weights into the run's policy."""

    def restore(self, state: LearnerState) -> None:
        """Continue from a learner state and from the weights that the run's policy holds now."""

    def close(self) -> None:
        """Stop every process that the backend started."""
