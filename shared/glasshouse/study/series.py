"""The table grouped by arm and measure, and the points at which arms are compared: a step, equal
accuracy, or equal KL from the start.

An arm that has lost capability also writes a worse chain of thought, so a difference at one step may
be nothing but a difference in accuracy. Comparing arms where each seed's accuracy passes the same
level removes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glasshouse.errors import ConfigError, RunDataError, did_you_mean
from glasshouse.study.table import Table

StepValues = Mapping[int, float | None]
"""The values of one measure of a run by step; None if undefined."""
RunSeries = Mapping[int, StepValues]
"""The same by seed."""
SeedValues = Mapping[int, float | None]
"""One value per seed; None if undefined."""


@dataclass(frozen=True, slots=True)
class StudySeries:
    """Everything that the runs of a study measured."""

    series: Mapping[tuple[str, str], RunSeries]
    """By arm and measure."""
    seeds: tuple[int, ...]
    """Every seed that any arm has. A seed that one arm lacks is a dropped pair."""
    bases: Mapping[int, str]
    """The base of each seed, the same in every arm."""

    def get(self, arm: str, measure: str) -> RunSeries:
        """Empty if no run of the arm has the measure."""
        return self.series.get((arm, measure), {})

    @property
    def arms(self) -> set[str]:
        return {arm for arm, _ in self.series}

    def last_step(self, arm: str, measure: str) -> int:
        """The last step at which any run of the arm has the measure; 0 if none has."""
        return max((step for run in self.get(arm, measure).values() for step in run), default=0)

    def check_measure(self, measure: str) -> None:
        """Raise if no run has the measure: the study file is wrong."""
        names = {name for _, name in self.series}
        if measure not in names:
            raise ConfigError(f'No run measured "{measure}".{did_you_mean(measure, names)}')

    def value_where(
        self, name: str, level: float, arm: str, measure: str, seed: int
    ) -> float | None:
        """The measure of a run where its measure `name` (accuracy, kl) first passes the level."""
        passing = self.defined_values(name, arm, seed)
        values = self.get(arm, measure).get(seed, {})
        return interpolate_at(level, list(passing.values()), [values.get(s) for s in passing])

    def defined_values(self, measure: str, arm: str, seed: int) -> dict[int, float]:
        run = self.get(arm, measure).get(seed, {})
        return {step: value for step, value in sorted(run.items()) if value is not None}


def group_series(table: Table) -> StudySeries:
    series: dict[tuple[str, str], dict[int, dict[int, float | None]]] = {}
    bases: dict[int, str] = {}
    for row in table:
        if bases.setdefault(row.seed, row.base) != row.base:
            raise RunDataError(
                f"Seed {row.seed} starts from {bases[row.seed]} in one arm and from {row.base} in "
                f"{row.arm}, so these runs are not paired. Run the study again with another --out."
            )
        by_seed = series.setdefault((row.arm, row.measure), {})
        by_seed.setdefault(row.seed, {})[row.step] = row.value
    return StudySeries(series, tuple(sorted(bases)), bases)


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
    runs = {
        (arm, seed): series.defined_values("accuracy", arm, seed) for arm in arms for seed in seeds
    }
    low = max((min(run.values()) for run in runs.values()), default=1.0)
    high = min((max(run.values()) for run in runs.values()), default=0.0)
    if low > high:
        return ComparisonPoint(
            name="equal accuracy",
            values_of=lambda arm, measure: {},
            reason=f"no accuracy is passed by every seed of {' and '.join(arms)}",
        )
    level = (low + high) / 2

    def values_of(arm: str, measure: str) -> SeedValues:
        return {
            seed: series.value_where("accuracy", level, arm, measure, seed)
            for seed in series.get(arm, measure)
        }

    def mean_step(arm: str) -> float:
        """Every seed of these passes the level."""
        steps = [
            interpolate_at(level, list(runs[arm, seed].values()), list(runs[arm, seed]))
            for seed in seeds
        ]
        return math.fsum(step for step in steps if step is not None) / len(steps)

    mean_steps = {arm: mean_step(arm) for arm in arms}
    evaluated = {
        step for arm in arms for run in series.get(arm, "accuracy").values() for step in run if step
    }
    return ComparisonPoint(
        name=f"accuracy {level:.3f}",
        values_of=values_of,
        mean_steps=mean_steps,
        is_before_first_evaluation=max(mean_steps.values()) < min(evaluated, default=0),
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
            seed: None if level is None else series.value_where("kl", level, name, measure, seed)
            for seed, level in levels.items()
        }

    return replace(point, name=f"the KL of {arm} at {point.name}", values_of=values_of)
