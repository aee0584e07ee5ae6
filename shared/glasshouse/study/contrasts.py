"""An arm − a reference over paired seeds: where arms are compared, and with which interval.

An arm that has lost capability also writes a worse chain of thought, so a difference at one step may
be nothing but a difference in accuracy. Comparing arms where each seed's accuracy passes the same
level removes that. An interval respects the bounds of the measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from glasshouse.measurement.intervals import (
    BaseInteraction,
    PairedComparison,
    compare_differences,
    estimate_interaction,
    mean_interval,
    wilson_interval,
)
from glasshouse.measurement.registry import lookup
from glasshouse.study.spec import MIN_RANDOM_BASES, START, Question
from glasshouse.study.table import MIN_EVENTS, NumberedValues, Table

NO_WIDTH = 1e-9
"""An interval narrower than this comes from equal differences, which differ by rounding at most."""


# --- points in training ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point in training that gives the values of any arm and measure."""

    name: str
    """`step 40`, or `accuracy 0.55`."""
    values_of: Callable[[str, str], NumberedValues]
    """(arm, measure) to values by seed."""
    mean_steps: Mapping[str, float] = field(default_factory=dict)
    """At equal accuracy: the step at which each arm reaches it, mean over seeds."""
    is_before_first_evaluation: bool = False
    """Whether all arms reach it before their first evaluation after the start, with little RL yet."""
    reason: str = ""
    """Why there are no values at this point; empty if there are."""


def point_at_step(table: Table, step: int) -> Point:
    def values_of(arm: str, measure: str) -> NumberedValues:
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

    def values_of(arm: str, measure: str) -> NumberedValues:
        seeds = table.runs_of(arm, measure)
        return {seed: _value_at(level, table, arm, "accuracy", measure, seed) for seed in seeds}

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
    """The same point, but the null arm is taken where its KL from the start has reached that of the arm, seed by
    seed, interpolated between evaluations. Undefined in a seed in which the null arm never moves that far."""
    levels = point.values_of(arm, "kl")

    def values_of(name: str, measure: str) -> NumberedValues:
        if name != null_arm:
            return point.values_of(name, measure)
        return {
            seed: None if level is None else _value_at(level, table, name, "kl", measure, seed)
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


def _value_at(
    level: float, table: Table, arm: str, along: str, measure: str, seed: int
) -> float | None:
    """A run's measure where another one, `along`, first passes a level."""
    passing = _curve(table, arm, along, seed)
    values = table.runs_of(arm, measure).get(seed, {})
    return interpolate_at(level, list(passing.values()), [values.get(step) for step in passing])


def _curve(table: Table, arm: str, measure: str, seed: int) -> dict[int, float]:
    """The defined values of a run by step."""
    run = table.runs_of(arm, measure).get(seed, {})
    return {step: value for step, value in sorted(run.items()) if value is not None}


# --- contrasts ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxEffect:
    """The largest possible effects, given the 95 % interval of the reference; None without bounds."""

    rise: float | None
    fall: float | None
    reason: str = ""
    """Why there is no ceiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast(PairedComparison):
    """The comparison, with the means of both sides over the same pairs."""

    arm: str
    reference: str
    before: float | None
    """Mean of the reference."""
    after: float | None
    """Mean of the arm."""
    interaction: BaseInteraction
    """Base × arm."""
    ceiling: MaxEffect
    is_cut: bool
    """Whether Student's interval went beyond what is possible and was cut there."""
    differences: tuple[float, ...]
    """The difference of each pair, for figures; not part of study.json, since the table has them."""
    units: tuple[float, ...]
    """The mean difference of each base if bases are the unit, else the differences."""

    @property
    def mean_difference(self) -> float | None:
        """Defined from one pair on, unlike the effect, which has an interval."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def differs_from_zero(self) -> bool:
        """Whether the uncorrected p and the interval exclude zero."""
        return replace(self, p_holm=None).shown

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        return {k: v for k, v in fields.items() if k not in ("ceiling", "differences", "units")}


class SeedMean(NamedTuple):
    """A mean over seeds with Student's 95 % interval, cut at the bounds of the measure; a single seed has none."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    is_cut: bool = False


def mean_over_seeds(values: Sequence[float | None], measure: str = "") -> SeedMean:
    """The mean over the seeds for which the measure is defined."""
    known = [v for v in values if v is not None]
    if not known:
        return SeedMean()
    mean, low, high = mean_interval(known)
    if len(known) == 1:
        return SeedMean(mean, n=1)
    least, most = (lookup(measure).bounds if measure else None) or (-math.inf, math.inf)
    cut_low, cut_high = min(mean, max(low, least)), max(mean, min(high, most))
    return SeedMean(mean, cut_low, cut_high, len(known), (cut_low, cut_high) != (low, high))


def contrast_arms(
    question: Question, table: Table, point: Point, arm: str, reference: str, base: str = ""
) -> Contrast:
    """Compare over all seeds, or those of one base; a pair without both values is dropped."""
    measure = question.measure
    after = point.values_of(arm, measure)
    if reference == START:
        before = point_at_step(table, 0).values_of(arm, measure)
    else:
        before = point.values_of(reference, question.against_measure or measure)
    seeds = [seed for seed in table.bases if not base or table.bases[seed] == base]
    sides = {seed: (after.get(seed), before.get(seed)) for seed in seeds}
    differences = {s: a - b for s, (a, b) in sides.items() if a is not None and b is not None}
    both, dropped = list(differences), len(seeds) - len(differences)
    bases = [table.bases[seed] for seed in both]
    is_random = len(set(bases)) >= MIN_RANDOM_BASES
    paired = compare_differences(list(differences.values()), dropped, bases if is_random else ())
    if paired.effect is None:
        reason = _why_undefined(measure, table, point, arm, reference)
        paired = replace(paired, reason=reason or paired.reason)
    units = both if paired.num_bases is None else bases
    references = unit_means([before[seed] for seed in both], units)
    ceiling = max_effect(measure, references)
    bounded = respect_bounds(paired, ceiling)
    is_cut = not bounded.reason and (bounded.low, bounded.high) != (paired.low, paired.high)
    return Contrast(
        **asdict(bounded),
        arm=arm,
        reference=question.against_measure or reference,
        before=mean_over_seeds(references).mean,
        after=mean_over_seeds(unit_means([after[seed] for seed in both], units)).mean,
        ceiling=ceiling,
        interaction=estimate_interaction(list(differences.values()), bases),
        is_cut=is_cut,
        differences=tuple(differences.values()),
        units=tuple(unit_means(list(differences.values()), units)),
    )


def max_effect(measure: str, reference: Sequence[float]) -> MaxEffect:
    """The ceiling, from the values of the reference (one per seed, or per base if bases are the unit).

    The mean of the reference is itself uncertain: the ceiling is what its 95 % interval allows, so
    that an effect that reaches the bound in every seed lies within it.

    Example: from accuracies of 0.25 in all seeds the largest rise is +0.75, the largest fall -0.25.
    """
    bounds = lookup(measure).bounds
    if bounds is None:
        return MaxEffect(rise=None, fall=None, reason=f"{measure} has no known bounds")
    if not reference:
        return MaxEffect(rise=None, fall=None, reason="the reference is undefined")
    lowest, highest = bounds
    mean, low, high = mean_interval(reference)
    if len(reference) == 1:
        low = high = mean
    return MaxEffect(
        rise=max(0.0, highest - max(lowest, low)), fall=min(0.0, lowest - min(highest, high))
    )


def respect_bounds(paired: PairedComparison, ceiling: MaxEffect) -> PairedComparison:
    """The comparison with an interval that has a width and does not exceed the largest effect.

    Equal differences have a Student interval without width, which would claim a certainty that
    nobody has. Wilson's interval for a unanimous sample takes its place: the share of other seeds (or
    bases) that may differ, times the distance to the largest effect. Example: eight differences of 0
    from a reference of 1 give -0.32 to 0. Without bounds there is no such interval.
    """
    if paired.effect is None or paired.low is None or paired.high is None:
        return paired
    rise, fall = ceiling.rise, ceiling.fall
    if paired.high - paired.low < NO_WIDTH:
        units = "bases" if paired.num_bases else "seeds"
        reason = f"all {paired.num_bases or paired.n} {units} have the same difference"
        if rise is None or fall is None:
            return replace(paired, low=None, high=None, reason=f"{reason}, so there is no interval")
        share = wilson_interval(0, paired.num_bases or paired.n)[1]
        low = paired.effect - share * max(0.0, paired.effect - fall)
        high = paired.effect + share * max(0.0, rise - paired.effect)
        return replace(paired, low=low, high=high, reason=f"{reason}: Wilson's interval")
    low = paired.low if fall is None else min(paired.effect, max(paired.low, fall))
    high = paired.high if rise is None else max(paired.effect, min(paired.high, rise))
    return replace(paired, low=low, high=high)


def unit_means(values: Sequence[float | None], units: Sequence[int] | Sequence[str]) -> list[float]:
    """The mean of each unit: of each seed, or of each base if bases are the unit."""
    groups: dict[object, list[float]] = {}
    for value, unit in zip(values, units, strict=True):
        if value is not None:
            groups.setdefault(unit, []).append(value)
    return [math.fsum(group) / len(group) for group in groups.values()]


def _why_undefined(measure: str, table: Table, point: Point, arm: str, reference: str) -> str:
    label, steps = lookup(measure).label, table.steps_of(arm, measure)
    for name in (arm, reference):
        if name != START and not table.runs_of(name, measure):
            return f"no run of {name} measured {label}"
    if point.reason:
        return point.reason
    if point.name.startswith("step ") and int(point.name.removeprefix("step ")) not in steps:
        return f"{label} was measured at steps {', '.join(map(str, steps))}, not at {point.name}"
    if reference == START and 0 not in steps:
        return f"{label} was not measured before RL"
    if any(row.n is not None and row.n < MIN_EVENTS for row in table if row.measure == measure):
        return f"too few events: {label} is a ratio over fewer than {MIN_EVENTS} in too many runs"
    return ""
