"""The quality of a monitor's scores: AUROC, and the labels that a refitted monitor needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from glasshouse.measurement.contingency import ratio
from glasshouse.values import Floats, Measure, as_labels, check_same_length, undefined_measure

NO_BEHAVIOUR = "no rollout with a verdict shows the behaviour"
NO_BENIGN = "no rollout with a verdict is free of the behaviour"


def auroc(behaviour: ArrayLike, scores: ArrayLike) -> Measure:
    """The chance that a rollout with the behaviour scores above one without, ties ½.

    NaN scores (failed verdicts) are left out. Example: `auroc([0, 0, 1, 1], [.1, .4, .35, .8])` is
    0.75.
    """
    labels, s = as_labels("behaviour", behaviour), np.asarray(scores, dtype=np.float64)
    check_same_length(behaviour=labels, scores=s)
    known = ~np.isnan(s)
    left_out = int((~known).sum())
    labels = labels[known]
    if not labels.any():
        return undefined_measure(NO_BEHAVIOUR, n=len(labels), left_out=left_out)
    if labels.all():
        return undefined_measure(NO_BENIGN, n=len(labels), left_out=left_out)
    value = weighted_auroc(labels, s[known], np.ones((1, len(labels))))[0]
    return Measure(value=float(value), n=len(labels), left_out=left_out)


def weighted_auroc(behaviour: ArrayLike, scores: ArrayLike, weights: Floats) -> Floats:
    """AUROC under each row of `weights` (B, R), with one sort for all resamples; NaN if undefined."""
    labels, s = as_labels("behaviour", behaviour), np.asarray(scores, dtype=np.float64)
    weights = np.where(np.isnan(s), 0.0, weights)
    order = np.argsort(s, kind="stable")
    _, starts = np.unique(s[order], return_index=True)
    sorted_weights, is_positive = weights[:, order], labels[order]
    positive = np.add.reduceat(sorted_weights * is_positive, starts, axis=1)  # (B, distinct scores)
    negative = np.add.reduceat(sorted_weights * ~is_positive, starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative
    pairs = (positive * (below + negative / 2)).sum(axis=1)
    return ratio(pairs, positive.sum(axis=1) * negative.sum(axis=1))


def labels_needed(
    sizes: Sequence[int], aurocs: Sequence[float | None], target: float = 0.95
) -> Measure:
    """The smallest number of labelled rollouts from which a refitted monitor holds the target AUROC.

    Example: `labels_needed([10, 30, 100], [0.7, 0.96, 0.97]).value` is 30.
    """
    check_same_length(sizes=sizes, aurocs=aurocs)
    smallest: int | None = None
    for size, area in sorted(zip(sizes, aurocs, strict=True), key=lambda pair: -pair[0]):
        if area is None or area < target:
            break
        smallest = size
    if smallest is None:
        most = max(sizes, default=0)
        return undefined_measure(f"not even {most} labelled rollouts reach an AUROC of {target:g}")
    return Measure(value=float(smallest), n=len(sizes))
