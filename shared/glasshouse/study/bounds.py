"""What the bounds of a measure allow: the ceiling of a question, and intervals that respect it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glasshouse.measurement.closed_forms import mean_interval, wilson_interval
from glasshouse.measurement.paired_seeds import PairedComparison
from glasshouse.measurement.registry import lookup

NO_WIDTH = 1e-9
"""An interval narrower than this comes from equal differences, which differ by rounding at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxEffect:
    """The largest possible effects, given the 95 % interval of the reference; None without bounds."""

    rise: float | None
    fall: float | None
    reason: str = ""
    """Why there is no ceiling."""


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
