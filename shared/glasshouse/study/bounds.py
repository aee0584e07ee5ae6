"""How far a measure can go: the ceiling of an effect is the room that is left."""

from __future__ import annotations

import re
from dataclasses import dataclass

RATES = {
    "accuracy", "accuracy_planted", "accuracy_control", "lenient", "strict", "format",
    "sampled_format", "truncated", "behaviour", "shortcut", "disclosure", "undetected",
    "true_positive_rate", "true_negative_rate", "flags", "AUROC", "TPR", "TNR", "rule_none",
    "parse failures", "has a CoT", "step validity", "step coverage", "mistake-follow",
    "mistake corrected", "transplant follow", "filler agreement", "follow-rate", "tracked",
    "string recall", "synonym share", "right, not tracked", "accuracy, control", "accuracy, planted",
}  # fmt: skip
"""The last parts of the names of measures that are shares: they lie from 0 to 1."""
DIFFERENCES = {"reliance", "necessity uplift", "plant necessity"}
"""Differences of two rates: at most 1. Their floor is 0, none of it left; noise may go below."""
PASS_AT = re.compile(r"pass_at_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The largest effects possible from where the reference stands; None where there is no bound."""

    rise: float | None
    fall: float | None
    reason: str = ""
    """Why there is no ceiling."""


def bounds(measure: str) -> tuple[float, float] | None:
    """Example: `bounds("discloses.disclosure")` is (0, 1); `bounds("kl")` is None."""
    last = measure.rsplit(".", 1)[-1].rsplit(": ", 1)[-1]
    if last in RATES or last in DIFFERENCES or PASS_AT.fullmatch(last):
        return 0.0, 1.0
    return None


def room(measure: str, reference: float | None) -> Room:
    """Example: from a mean accuracy of 0.25 the largest rise is +0.75, the largest fall -0.25."""
    ends = bounds(measure)
    if ends is None:
        return Room(rise=None, fall=None, reason=f"{measure} has no known bounds")
    if reference is None:
        return Room(rise=None, fall=None, reason="the reference is undefined")
    low, high = ends
    return Room(rise=max(0.0, high - reference), fall=min(0.0, low - reference))
