"""Where arms are compared: at one step, or where they are equally accurate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glasshouse.estimation import Curve, at_accuracy, shared_accuracy
from glasshouse.study.series import Measured, Series

Values = Mapping[int, float | None]
"""One value a seed; None where it is undefined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place has a name for people and gives any arm's values of any measure there."""

    name: str
    """`step 40`, or `accuracy 0.55`."""
    read: Callable[[str, str], Values]
    """(arm, measure) to values by seed."""
    when: Mapping[str, float] = field(default_factory=dict)
    """At equal accuracy: the step, mean over seeds, at which each arm passes it."""
    early: bool = False
    """All arms pass it before their first evaluation after the start: RL had done little yet."""
    reason: str = ""
    """Why nothing can be read here; empty where something can."""


def at_step(found: Measured, step: int) -> Place:
    def read(arm: str, measure: str) -> Values:
        return {seed: steps.get(step) for seed, steps in found.of(arm, measure).items()}

    return Place(name=f"step {step}", read=read)


def at_equal_accuracy(found: Measured, arms: Sequence[str]) -> Place:
    """Midway between the lowest and the highest accuracy that every seed of these arms passes.

    The level is a function of the accuracies alone: the measure is not looked at to choose it.
    """
    seeds = set.intersection(*(set(found.of(arm, "accuracy")) for arm in arms))
    shared = shared_accuracy(
        *({s: _curve(found, arm, "accuracy", s) for s in sorted(seeds)} for arm in arms)
    )
    if shared is None:
        told = " and ".join(arms)
        why = f"no accuracy is passed by every seed of {told}"
        return Place(name="equal accuracy", read=lambda arm, measure: {}, reason=why)
    level = (shared[0] + shared[1]) / 2

    def read(arm: str, measure: str) -> Values:
        return {
            seed: at_accuracy(_curve(found, arm, measure, seed), level).value
            for seed in found.of(arm, measure)
        }

    when = {arm: _passed(found, arm, sorted(seeds), level) for arm in arms}
    runs = [run for arm in arms for run in found.of(arm, "accuracy").values()]
    first = min((step for run in runs for step in run if step), default=0)
    early = all(step < first for step in when.values())
    return Place(name=f"accuracy {level:.3f}", read=read, when=when, early=early)


def _passed(found: Measured, arm: str, seeds: Sequence[int], level: float) -> float:
    """The step at which the arm passes the level, mean over seeds; every seed passes it."""
    curves = [_curve(found, arm, "accuracy", seed) for seed in seeds]
    steps = [
        at_accuracy(replace(c, values=[float(s) for s in c.steps]), level).value for c in curves
    ]
    return math.fsum(step for step in steps if step is not None) / len(steps)


def last_step(series: Series) -> int:
    """The last step at which any run has the measure; 0 where none has."""
    return max((step for steps in series.values() for step in steps), default=0)


def _curve(found: Measured, arm: str, measure: str, seed: int) -> Curve:
    """The run's steps at which its accuracy is known."""
    accuracy = found.of(arm, "accuracy").get(seed, {})
    values = found.of(arm, measure).get(seed, {})
    known = [(step, a) for step, a in sorted(accuracy.items()) if a is not None]
    return Curve(
        [step for step, _ in known], [a for _, a in known], [values.get(s) for s, _ in known]
    )
