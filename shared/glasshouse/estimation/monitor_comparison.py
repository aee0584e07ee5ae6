"""Two monitors on the same rollouts: which is right more often?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.estimation.bootstrap import RESAMPLES, Interval, bootstrap
from glasshouse.estimation.paired_seeds import sign_flip
from glasshouse.estimation.weighted_statistics import of_mean
from glasshouse.measures.contingency import FAILED, flags
from glasshouse.measures.result import labels, same_length
from glasshouse.randomness import Part
from glasshouse.statistics import mcnemar


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """The first monitor beside the second, where both gave a verdict."""

    only_first: int
    """Rollouts that only the first one judges rightly,"""
    only_second: int
    """and only the second."""
    p: float
    """McNemar's exact test, which counts rollouts as independent."""
    p_problems: float | None
    """The same question with whole problems as units: the sign-flip test of their differences."""
    difference: Interval
    """Of the share judged rightly, first − second, resampled over problems."""
    n: int
    left_out: int
    """Rollouts on which one of them failed."""


def versus(
    y: ArrayLike,
    first: ArrayLike,
    second: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[Part],
    resamples: int = RESAMPLES,
) -> Versus:
    """Compare the verdicts z of two monitors of the same behaviour y.

    Believe `p_problems` where a problem has several rollouts: McNemar's p is too small there.
    """
    behaviour, one, two = labels("y", y), flags(first), flags(second)
    problem = np.unique(np.asarray(problems), return_inverse=True)[1]
    same_length(y=behaviour, first=one, second=two, problems=problem)
    seen = (one != FAILED) & (two != FAILED)
    ahead = (one == behaviour).astype(np.int64) - (two == behaviour).astype(np.int64)
    ahead, problem = ahead[seen], problem[seen]
    per_problem = np.bincount(problem, weights=ahead.astype(np.float64))
    decided = per_problem[per_problem != 0]
    only_first, only_second = int((ahead == 1).sum()), int((ahead == -1).sum())
    none = Interval(low=None, high=None, units=0, reason="no rollout has a verdict of both")
    return Versus(
        only_first=only_first,
        only_second=only_second,
        p=mcnemar(only_first, only_second),
        p_problems=sign_flip(decided.tolist()) if len(decided) else None,
        difference=bootstrap(of_mean(ahead), [problem], key=key, resamples=resamples)
        if seen.any()
        else none,
        n=int(seen.sum()),
        left_out=int((~seen).sum()),
    )
