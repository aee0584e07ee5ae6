"""The evaluation protocol: what an evaluation of a checkpoint receives and returns.

`glasshouse monitor` runs a list of evaluations on the base model and on every checkpoint of a run,
and stores their results. A new evaluation is a class with these three members:

    class Reliance:
        name = "reliance"
        def describe(self): return {"organism": "leaked_hint"}
        def evaluate(self, checkpoint):
            rollouts = checkpoint.collect(task, problems, samples=16, split="monitor/planted")
            …
            return Measurement(measures={"reliance": measure}, rows=rows)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from glasshouse.measurement.measure import Measurement, Row
from glasshouse.tasks.base import Task
from glasshouse.types import Grade, Problem, Rollout

if TYPE_CHECKING:  # torch is imported where a model is run
    from glasshouse.generate.engines import Generator
    from glasshouse.models.policy import Policy


class CollectRollouts(Protocol):
    """Samples completions of the problems and grades them, as in training."""

    def __call__(
        self, task: Task[Any], problems: Sequence[Problem], *, samples: int, split: str
    ) -> list[Rollout]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """A checkpoint with what an evaluation needs to generate and grade."""

    name: str
    """`base`, or the checkpoint's name."""
    step: int
    policy: Policy
    generator: Generator
    task: Task[Any]
    rollouts: Sequence[Rollout]
    """One per held-out problem, sampled with the run's config."""
    collect: CollectRollouts
    grade: Callable[[Problem, str], Grade]
    """The run's grader."""
    max_tokens: int
    """The run's limit on a completion's length."""
    seed: int = 0
    reserve: Sequence[Problem] = ()
    """Held-out problems besides those of `rollouts`, on which monitors may be fitted: as many as
    the evaluation's `reserve`, or fewer if the task has fewer."""
    base_rows: Sequence[Row] | None = None
    """The rows of the same evaluation on the base model; None for the base model itself."""


class Evaluation(Protocol):
    """Measures a checkpoint."""

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, Any]:
        """Everything that determines the result, as JSON values: stored results with another
        description are measured again."""

    def evaluate(self, checkpoint: EvaluatedCheckpoint) -> Measurement: ...


def reserve_size(evaluation: Evaluation) -> int:
    """How many reserve problems an evaluation needs: its optional member `reserve`."""
    return int(getattr(evaluation, "reserve", 0))
