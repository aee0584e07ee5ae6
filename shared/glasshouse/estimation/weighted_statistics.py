"""Measures as functions of row weights, which is what resampling needs.

A bootstrap resample is a count per row: how often it was drawn. So a `Statistic` takes weights
(B, R), B resamples of R rows, and gives (B,) values, NaN where the measure is undefined. Weights
of one give the measure itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.measures.contingency import CELLS, cells, ratio
from glasshouse.measures.detection import weighted_auroc
from glasshouse.measures.result import Floats, labels, same_length

Statistic = Callable[[Floats], Floats]
Reading = Callable[[Floats], Floats]
"""Tables (…, 2, 2, 3) to values (…): `tables.disclosure`, say."""


def of_table(read: Reading, x: ArrayLike | None, y: ArrayLike, z: ArrayLike) -> Statistic:
    """A rate of the contingency table. Example: `of_table(tables.undetected, x, y, z)`"""
    place = cells(x, y, z)  # (R, 12)
    return lambda weights: read((weights @ place).reshape(-1, *CELLS))


def of_auroc(y: ArrayLike, scores: ArrayLike) -> Statistic:
    return lambda weights: weighted_auroc(y, scores, weights)


def of_mean(rows: ArrayLike) -> Statistic:
    """A mean over rollouts (accuracy, AOC, TRACE, step validity); NaN rows are left out."""
    values = np.asarray(rows, dtype=np.float64)
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    return lambda weights: ratio(weights @ filled, weights @ known.astype(np.float64))


def of_difference(rows: ArrayLike, arm: ArrayLike) -> Statistic:
    """Mean of the rows of arm 1 − mean of the rows of arm 0: the necessity uplift, say."""
    values, chosen = np.asarray(rows, dtype=np.float64), labels("arm", arm)
    same_length(rows=values, arm=chosen)
    first = of_mean(np.where(chosen, values, np.nan))
    second = of_mean(np.where(chosen, np.nan, values))
    return minus(first, second)


def minus(first: Statistic, second: Statistic) -> Statistic:
    """The difference of two measures of the same rows: two monitors, two scopes."""
    return lambda weights: first(weights) - second(weights)
