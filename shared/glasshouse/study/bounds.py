"""The largest effect that the bounds of a measure allow: the ceiling of a question."""

from __future__ import annotations

from dataclasses import dataclass

from glasshouse.measures.registry import lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxEffect:
    """The largest possible effects, given the mean of the reference; None without bounds."""

    rise: float | None
    fall: float | None
    reason: str = ""
    """Why there is no ceiling."""


def max_effect(measure: str, reference: float | None) -> MaxEffect:
    """Example: from a mean accuracy of 0.25 the largest rise is +0.75, the largest fall -0.25."""
    bounds = lookup(measure).bounds
    if bounds is None:
        return MaxEffect(rise=None, fall=None, reason=f"{measure} has no known bounds")
    if reference is None:
        return MaxEffect(rise=None, fall=None, reason="the reference is undefined")
    low, high = bounds
    return MaxEffect(rise=max(0.0, high - reference), fall=min(0.0, low - reference))
