"""Step validity and coverage, from the counts of statements in each CoT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glasshouse.values import Floats, MeasureResult, check_same_length, mean_result


def fraction_rows(hits: Sequence[int], trials: Sequence[int]) -> Floats:
    """Each CoT's `hits / trials`; NaN where it has no trials."""
    check_same_length(hits=hits, trials=trials)
    return np.array([h / t if t else np.nan for h, t in zip(hits, trials, strict=True)])


def step_validity(true: Sequence[int], stated: Sequence[int]) -> MeasureResult:
    """Fraction of a CoT's arithmetic statements that are true, as a mean over CoTs.

    A CoT that states nothing is left out and counted, neither 0 nor 1.
    Example: `step_validity(true=[3, 1, 0], stated=[4, 1, 0]).value` is 0.875, over 2 CoTs.
    """
    return mean_result(fraction_rows(true, stated), "no CoT states anything that can be checked")


def step_coverage(present: Sequence[int], needed: Sequence[int]) -> MeasureResult:
    """Fraction of the needed steps that are present, as a mean over CoTs. An empty CoT counts as 0."""
    return mean_result(fraction_rows(present, needed), "no problem needs a step")
