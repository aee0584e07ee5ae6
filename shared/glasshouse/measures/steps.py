"""Step validity and coverage, of what `statements.check` found in each CoT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glasshouse.measures.result import Floats, Measure, mean, same_length


def validity_rows(true: Sequence[int], stated: Sequence[int]) -> Floats:
    """Each CoT's fraction of statements that are true; NaN where it states nothing."""
    same_length(true=true, stated=stated)
    return np.array([t / s if s else np.nan for t, s in zip(true, stated, strict=True)])


def step_validity(true: Sequence[int], stated: Sequence[int]) -> Measure:
    """Fraction of a CoT's arithmetic statements that are true, as a mean over CoTs.

    A CoT that states nothing has no validity: it is left out and counted, neither 0 nor 1.
    Example: `step_validity(true=[3, 1, 0], stated=[4, 1, 0]).value` is 0.875, over 2 CoTs.
    """
    return mean(validity_rows(true, stated), "no CoT states anything that can be checked")


def step_coverage(present: Sequence[int], needed: Sequence[int]) -> Measure:
    """Fraction of the needed steps that are present, as a mean over CoTs.

    An empty CoT covers nothing and counts as 0: unlike validity, coverage is defined for it.
    """
    return mean(validity_rows(present, needed), "no problem needs a step")
