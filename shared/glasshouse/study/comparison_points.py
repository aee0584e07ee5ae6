"""The points at which arms are compared: a step, equal accuracy, or equal KL from the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glasshouse.measurement.matched import AccuracyCurve, shared_accuracy, value_at_accuracy
from glasshouse.study.series import RunSeries, StudySeries

SeedValues = Mapping[int, float | None]
"""One value per seed; None if undefined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPoint:
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


def point_at_step(series: StudySeries, step: int) -> ComparisonPoint:
    def values_of(arm: str, measure: str) -> SeedValues:
        return {seed: values.get(step) for seed, values in series.get(arm, measure).items()}

    return ComparisonPoint(name=f"step {step}", values_of=values_of)


def point_at_equal_accuracy(series: StudySeries, arms: Sequence[str]) -> ComparisonPoint:
    """The midpoint of the range of accuracy that every seed of these arms passes.

    It depends on the accuracies only, not on the measure that is compared.
    """
    seeds = sorted(set.intersection(*(set(series.get(arm, "accuracy")) for arm in arms)))
    shared = shared_accuracy(
        *({seed: _curve(series, arm, "accuracy", seed) for seed in seeds} for arm in arms)
    )
    if shared is None:
        return ComparisonPoint(
            name="equal accuracy",
            values_of=lambda arm, measure: {},
            reason=f"no accuracy is passed by every seed of {' and '.join(arms)}",
        )
    level = (shared[0] + shared[1]) / 2

    def values_of(arm: str, measure: str) -> SeedValues:
        return {
            seed: value_at_accuracy(_curve(series, arm, measure, seed), level).value
            for seed in series.get(arm, measure)
        }

    mean_steps = {arm: _mean_step(series, arm, seeds, level) for arm in arms}
    runs = [run for arm in arms for run in series.get(arm, "accuracy").values()]
    first_evaluation = min((step for run in runs for step in run if step), default=0)
    return ComparisonPoint(
        name=f"accuracy {level:.3f}",
        values_of=values_of,
        mean_steps=mean_steps,
        is_before_first_evaluation=all(step < first_evaluation for step in mean_steps.values()),
    )


def point_at_equal_kl(
    series: StudySeries, point: ComparisonPoint, arm: str, null_arm: str
) -> ComparisonPoint:
    """The point for all arms but the null arm, which is taken where its KL from the start equals the
    arm's at this point, seed by seed: both have moved equally far. Undefined in a seed in which the
    null arm never moves that far."""
    levels = point.values_of(arm, "kl")

    def values_of(name: str, measure: str) -> SeedValues:
        if name != null_arm:
            return point.values_of(name, measure)
        return {
            seed: None if level is None else _value_at_kl(series, null_arm, measure, seed, level)
            for seed, level in levels.items()
        }

    return replace(point, name=f"the KL of {arm} at {point.name}", values_of=values_of)


def _value_at_kl(
    series: StudySeries, arm: str, measure: str, seed: int, level: float
) -> float | None:
    """The measure where the run's KL first passes the level, interpolated between evaluations."""
    kl = series.get(arm, "kl").get(seed, {})
    values = series.get(arm, measure).get(seed, {})
    known = [(step, k) for step, k in sorted(kl.items()) if k is not None]
    curve = AccuracyCurve(
        [step for step, _ in known], [k for _, k in known], [values.get(s) for s, _ in known]
    )
    return value_at_accuracy(curve, level).value


def last_step(series: RunSeries) -> int:
    """The last step at which any run has the measure; 0 if none has."""
    return max((step for steps in series.values() for step in steps), default=0)


def _mean_step(series: StudySeries, arm: str, seeds: Sequence[int], level: float) -> float:
    """The step at which the arm reaches the accuracy, mean over seeds, all of which reach it."""
    curves = [_curve(series, arm, "accuracy", seed) for seed in seeds]
    steps = [
        value_at_accuracy(replace(curve, values=[float(s) for s in curve.steps]), level).value
        for curve in curves
    ]
    return math.fsum(step for step in steps if step is not None) / len(steps)


def _curve(series: StudySeries, arm: str, measure: str, seed: int) -> AccuracyCurve:
    """The measure of one run at the steps at which its accuracy is known."""
    accuracy = series.get(arm, "accuracy").get(seed, {})
    values = series.get(arm, measure).get(seed, {})
    known = [(step, a) for step, a in sorted(accuracy.items()) if a is not None]
    return AccuracyCurve(
        [step for step, _ in known], [a for _, a in known], [values.get(s) for s, _ in known]
    )
