"""Measures as functions of row weights, which is what resampling needs.

A bootstrap resample is a count per row: how often it was drawn. So a `WeightedStatistic` takes
weights (B, R), B resamples of R rows, and returns (B,) values, NaN where the measure is undefined.
Weights of one give the measure itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.measurement.contingency import TABLE_SHAPE, one_hot_cells, ratio
from glasshouse.measurement.detection import weighted_auroc
from glasshouse.values import Floats

WeightedStatistic = Callable[[Floats], Floats]
TableStatistic = Callable[[Floats], Floats]
"""Tables (…, 2, 2, 3) to values (…), such as `contingency.disclosure`."""


def table_statistic(
    statistic: TableStatistic,
    planted: ArrayLike | None,
    behaviour: ArrayLike,
    flagged: ArrayLike,
) -> WeightedStatistic:
    """A rate of the contingency table.

    Example: `table_statistic(contingency.undetected_use, planted, behaviour, flagged)`
    """
    cells = one_hot_cells(planted, behaviour, flagged)  # (R, 12)
    return lambda weights: statistic((weights @ cells).reshape(-1, *TABLE_SHAPE))


def auroc_statistic(behaviour: ArrayLike, scores: ArrayLike) -> WeightedStatistic:
    return lambda weights: weighted_auroc(behaviour, scores, weights)


def mean_statistic(rows: ArrayLike) -> WeightedStatistic:
    """A mean over rollouts (accuracy, AOC, TRACE, step validity); NaN rows are left out."""
    values = np.asarray(rows, dtype=np.float64)
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    return lambda weights: ratio(weights @ filled, weights @ known.astype(np.float64))
