"""An evaluation of a checkpoint: what it needs, and what it gives.

`glasshouse monitor` takes the base and every checkpoint of a run through a list of evaluations and
keeps what they find. Another one (an organism's, say) is a class with these three members:

    class Reliance:
        name = "reliance"
        def describe(self): return {"organism": "leaked hint"}
        def evaluate(self, subject):
            planted = subject.collect(self.task, self.problems, samples=16, split="monitor/planted")
            …
            return Findings(measures={"reliance": scored}, rows=rows)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from glasshouse.estimation.estimates import Scored
from glasshouse.generate import Generator
from glasshouse.models import Policy
from glasshouse.tasks.base import Task
from glasshouse.types import Grade, Problem, Rollout

Row = dict[str, Any]


class Collect(Protocol):
    """Asks problems of the subject and grades the answers, drawn as in training."""

    def __call__(
        self, task: Task[Any], problems: Sequence[Problem], *, samples: int, split: str
    ) -> list[Rollout]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One set of weights, ready to be asked."""

    name: str
    """`base`, or a checkpoint's name."""
    step: int
    policy: Policy
    generator: Generator
    task: Task[Any]
    rollouts: Sequence[Rollout]
    """One of every held-out problem, drawn as the run's configuration draws them."""
    collect: Collect
    grade: Callable[[Problem, str], Grade]
    """The run's own."""
    max_tokens: int
    """The longest completion that the run allows."""
    seed: int = 0
    reserve: Sequence[Problem] = ()
    """Held-out problems beside those of `rollouts`, as many as the evaluation's `reserve` says (and
    as there are): what a monitor may be fitted on."""
    base: Sequence[Row] | None = None
    """The rows that the same evaluation kept of the base; None for the base itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an evaluation found of one subject."""

    measures: Mapping[str, Scored]
    rows: Sequence[Row] = field(default_factory=list)
    """What the measures rest on, in long form. A row with `measure`, `key`, `sample` and `value` is
    one rollout's share in a measure: the same rows of two checkpoints are compared pair by pair."""


class Evaluation(Protocol):
    """Anything that measures a subject."""

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, Any]:
        """Everything that decides its findings, as JSON values: what was found under another
        description is measured anew."""

    def evaluate(self, subject: Subject) -> Findings: ...


def reserve(evaluation: Evaluation) -> int:
    """How many problems it wants beside the held-out ones: its member `reserve`, if it has one."""
    return int(getattr(evaluation, "reserve", 0))


def shares(measure: str, rollouts: Sequence[Rollout], values: Sequence[float]) -> list[Row]:
    """Each rollout's share in a measure, as rows; NaN (no share) becomes null."""
    return [
        {
            "measure": measure,
            "key": rollout.problem.key,
            "sample": rollout.sample,
            "value": None if value != value else float(value),
        }
        for rollout, value in zip(rollouts, values, strict=True)
    ]
