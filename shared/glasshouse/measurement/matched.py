"""A run's measure where its accuracy passes a level.

An arm that has lost capability also writes a worse chain of thought, so a difference at one step may
be nothing but a difference in accuracy. Comparing arms where each seed's accuracy passes the same
level removes that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glasshouse.errors import MonitorError
from glasshouse.values import MeasureResult, undefined_result


@dataclass(frozen=True, slots=True)
class AccuracyCurve:
    """One run's checkpoints: accuracy, and a measure that may be undefined (None)."""

    steps: Sequence[int]
    accuracy: Sequence[float]
    values: Sequence[float | None]

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.accuracy) == len(self.values):
            raise MonitorError("A curve needs an accuracy and a value for each of its steps.")
        if list(self.steps) != sorted(set(self.steps)):
            raise MonitorError("The steps of a curve must rise.")


def value_at_accuracy(curve: AccuracyCurve, level: float) -> MeasureResult:
    """The measure where accuracy first passes the level, up or down, interpolated between two
    checkpoints.

    Example: accuracy .2 then .6, measure 1.0 then 0.5: at accuracy .4 the measure is 0.75.
    """
    accuracy, values = curve.accuracy, curve.values
    for i, current in enumerate(accuracy):
        value = values[i]
        if current == level:
            if value is None:
                return undefined_result(f"the measure is undefined at step {curve.steps[i]}")
            return MeasureResult(value=value, n=1)
        if i + 1 < len(accuracy) and (current - level) * (accuracy[i + 1] - level) < 0:
            following = values[i + 1]
            if value is None or following is None:
                return undefined_result(f"the measure is undefined at accuracy {level:g}")
            share = (level - current) / (accuracy[i + 1] - current)
            return MeasureResult(value=value + share * (following - value), n=2)
    return undefined_result(f"accuracy never passes {level:g}")


def shared_accuracy(*arms: Mapping[int, AccuracyCurve]) -> tuple[float, float] | None:
    """The lowest and highest accuracy that every seed of every arm passes; None if there is none.

    Choose a level in this range before looking at the measure.
    """
    curves = [curve for arm in arms for curve in arm.values()]
    if not curves:
        return None
    low = max(min(curve.accuracy) for curve in curves)
    high = min(max(curve.accuracy) for curve in curves)
    return (low, high) if low <= high else None
