"""Where arms are compared: at a step, at equal accuracy, or at equal KL from the start.

An arm that has lost capability also writes a worse chain of thought, so a difference at one step may
be nothing but a difference in accuracy. Comparing arms where each seed's accuracy passes the same
level removes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glasshouse.study.table import SeedValues, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point in training that gives the values of any arm and measure."""

    name: str
    """`step 40`, or `accuracy 0.55`."""
    values_of: Callable[[str, str], SeedValues]
    """(arm, measure) to values by seed."""
    mean_steps: Mapping[str, float] = field(default_factory=dict)
    """At equal accuracy: the step at which each arm reaches it, mean over seeds."""
    is_before_first_evaluation: bool = False
    """Whether all arms reach it before their first evaluation after the start, with little RL yet."""
    reason: str = ""
    """Why there are no values at this point; empty if there are."""


def point_at_step(table: Table, step: int) -> Point:
    def values_of(arm: str, measure: str) -> SeedValues:
        return {seed: values.get(step) for seed, values in table.runs_of(arm, measure).items()}

    return Point(name=f"step {step}", values_of=values_of)


def point_at_equal_accuracy(table: Table, arms: Sequence[str]) -> Point:
    """The midpoint of the range of accuracy that every seed of these arms passes. It depends on the
    accuracies only, not on the measure that is compared."""
    seeds = sorted(set.intersection(*(set(table.runs_of(arm, "accuracy")) for arm in arms)))
    runs = {(arm, seed): _curve(table, arm, "accuracy", seed) for arm in arms for seed in seeds}
    low = max((min(run.values()) for run in runs.values()), default=1.0)
    high = min((max(run.values()) for run in runs.values()), default=0.0)
    if low > high:
        reason = f"no accuracy is passed by every seed of {' and '.join(arms)}"
        return Point(name="equal accuracy", values_of=lambda arm, measure: {}, reason=reason)
    level = (low + high) / 2

    def values_of(arm: str, measure: str) -> SeedValues:
        seeds = table.runs_of(arm, measure)
        return {s: _value_where(table, "accuracy", level, arm, measure, s) for s in seeds}

    def mean_step(arm: str) -> float:
        curves = [runs[arm, seed] for seed in seeds]
        steps = [interpolate_at(level, list(run.values()), list(run)) for run in curves]
        return math.fsum(step for step in steps if step is not None) / len(steps)

    mean_steps = {arm: mean_step(arm) for arm in arms}
    evaluated = {step for arm in arms for step in table.steps_of(arm, "accuracy") if step}
    return Point(
        name=f"accuracy {level:.3f}",
        values_of=values_of,
        mean_steps=mean_steps,
        is_before_first_evaluation=max(mean_steps.values()) < min(evaluated, default=0),
    )


def point_at_equal_kl(table: Table, point: Point, arm: str, null_arm: str) -> Point:
    """The point for all arms but the null arm, which is taken where its KL from the start equals the
    arm's at this point, seed by seed: both have moved equally far. Undefined in a seed in which the
    null arm never moves that far."""
    levels = point.values_of(arm, "kl")

    def values_of(name: str, measure: str) -> SeedValues:
        if name != null_arm:
            return point.values_of(name, measure)
        return {
            seed: None if level is None else _value_where(table, "kl", level, name, measure, seed)
            for seed, level in levels.items()
        }

    return replace(point, name=f"the KL of {arm} at {point.name}", values_of=values_of)


def interpolate_at(x: float, xs: Sequence[float], values: Sequence[float | None]) -> float | None:
    """The value where `xs` first passes `x`, up or down, interpolated between its neighbours; None if
    it never does, or if a value there is undefined.

    Example: `interpolate_at(0.4, [0.2, 0.6], [1.0, 0.5])` is 0.75.
    """
    for i, (current, value) in enumerate(zip(xs, values, strict=True)):
        if current == x:
            return value
        if i + 1 < len(xs) and (current - x) * (xs[i + 1] - x) < 0:
            following = values[i + 1]
            if value is None or following is None:
                return None
            return value + (x - current) / (xs[i + 1] - current) * (following - value)
    return None


def _value_where(
    table: Table, name: str, level: float, arm: str, measure: str, seed: int
) -> float | None:
    """The measure of a run where its measure `name` (accuracy, kl) first passes the level."""
    passing = _curve(table, arm, name, seed)
    values = table.runs_of(arm, measure).get(seed, {})
    return interpolate_at(level, list(passing.values()), [values.get(step) for step in passing])


def _curve(table: Table, arm: str, measure: str, seed: int) -> dict[int, float]:
    """The defined values of a run by step."""
    run = table.runs_of(arm, measure).get(seed, {})
    return {step: value for step, value in sorted(run.items()) if value is not None}
