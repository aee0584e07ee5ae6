"""Two arms compared at the same step, and where they are equally accurate.

An arm that has lost capability also writes a worse chain of thought; so a difference at one step
may be nothing but a difference in accuracy. Compared where each seed's accuracy passes the same
level, that is taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from glasshouse.errors import MonitorError
from glasshouse.estimation.paired_seeds import Paired, paired
from glasshouse.measures.result import Measure, undefined


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's checkpoints. `values` holds the measure, None where it is undefined."""

    steps: Sequence[int]
    accuracy: Sequence[float]
    values: Sequence[float | None]

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.accuracy) == len(self.values):
            raise MonitorError("A curve needs an accuracy and a value for each of its steps.")
        if list(self.steps) != sorted(set(self.steps)):
            raise MonitorError("The steps of a curve must rise.")


Arm = Mapping[int, Curve]
"""Curves by seed."""


def at_step(curve: Curve, step: int) -> Measure:
    """The measure at a checkpoint."""
    if step not in curve.steps:
        return undefined(f"there is no checkpoint at step {step}")
    value = curve.values[list(curve.steps).index(step)]
    if value is None:
        return undefined(f"the measure is undefined at step {step}")
    return Measure(value=value, n=1)


def at_accuracy(curve: Curve, level: float) -> Measure:
    """The measure where accuracy first passes the level, up or down, between two checkpoints.

    Example: accuracy .2 then .6, measure 1.0 then 0.5: at accuracy .4 the measure is 0.75.
    """
    accuracy, values = curve.accuracy, curve.values
    for i, here in enumerate(accuracy):
        value = values[i]
        if here == level:
            if value is None:
                return undefined(f"the measure is undefined at step {curve.steps[i]}")
            return Measure(value=value, n=1)
        if i + 1 < len(accuracy) and (here - level) * (accuracy[i + 1] - level) < 0:
            following = values[i + 1]
            if value is None or following is None:
                return undefined(f"the measure is undefined beside accuracy {level:g}")
            share = (level - here) / (accuracy[i + 1] - here)
            return Measure(value=value + share * (following - value), n=2)
    return undefined(f"accuracy never passes {level:g}")


def matched_step(treatment: Arm, control: Arm, step: int) -> Paired:
    """Treatment − control at one step, seed by seed."""
    return _matched(treatment, control, lambda curve: at_step(curve, step))


def matched_accuracy(treatment: Arm, control: Arm, level: float) -> Paired:
    """Treatment − control where each seed's accuracy passes the level.

    A seed that never passes it in one of the arms is dropped, and counted.
    """
    return _matched(treatment, control, lambda curve: at_accuracy(curve, level))


def shared_accuracy(*arms: Arm) -> tuple[float, float] | None:
    """The accuracies that every seed of every arm passes, lowest and highest; None if there are none.

    Choose the level of `matched_accuracy` here, before looking at the measure.
    """
    curves = [curve for arm in arms for curve in arm.values()]
    if not curves:
        return None
    low = max(min(curve.accuracy) for curve in curves)
    high = min(max(curve.accuracy) for curve in curves)
    return (low, high) if low <= high else None


def _matched(treatment: Arm, control: Arm, value: Callable[[Curve], Measure]) -> Paired:
    if set(treatment) != set(control):
        odd = sorted(set(treatment) ^ set(control))
        raise MonitorError(f"Paired arms need the same seeds; only one arm has {odd}.")
    seeds = sorted(treatment)
    return paired(
        [value(treatment[seed]).value for seed in seeds],
        [value(control[seed]).value for seed in seeds],
    )
