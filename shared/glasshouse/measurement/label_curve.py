"""How many labelled rollouts does an auditor need to fit a good monitor?

    labelled rollouts ──► n of them, half of each label, several draws ──► fit ──► AUROC on others

The result is a learning curve; its band is the spread over the draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measurement.detection import auroc, labels_needed
from glasshouse.monitors.fitted import LabelledViews
from glasshouse.monitors.ngrams import extract_ngrams, fit_ngram_weights
from glasshouse.values import Bools, Floats, Measure, as_labels, undefined_measure

SIZES = (2, 4, 8, 16, 32, 64, 128, 200)
DRAWS = 5
TARGET_AUROC = 0.95
MIN_PER_LABEL = 20
"""Fewest rollouts of each label, for fitting and for testing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """AUROC by the number of labelled rollouts that a monitor was fitted on."""

    sizes: tuple[int, ...]
    aurocs: Floats
    """(sizes, draws); NaN where nothing could be fitted."""
    reason: str = ""
    """Why there is no curve."""

    @property
    def labels_needed(self) -> Measure:
        """The size from which on the mean over the draws stays at or above the target."""
        if self.reason:
            return undefined_measure(self.reason)
        means = [None if np.isnan(row).any() else float(row.mean()) for row in self.aurocs]
        return labels_needed(self.sizes, means, TARGET_AUROC)


def fit_learning_curve(
    training: LabelledViews,
    test: LabelledViews,
    *,
    key: Sequence[randomness.Part],
    sizes: Sequence[int] = SIZES,
    draws: int = DRAWS,
) -> LearningCurve:
    """Fits n-gram monitors on growing subsets. Sizes above the number of rollouts are left out.

    Example: `fit_learning_curve(training, test, key=("audit", 0)).labels_needed.value`
    """
    if overlap := set(training.problems) & set(test.problems):
        raise MonitorError(
            f"{len(overlap)} problems are in both the training split and the test split "
            f"(for example {min(overlap)!r}); the splits must be disjoint."
        )
    labels, test_labels = (as_labels("labels", list(split.labels)) for split in (training, test))
    for split_labels in (labels, test_labels):
        for label, word in ((True, "positive"), (False, "negative")):
            if (count := int((split_labels == label).sum())) < MIN_PER_LABEL:
                reason = f"only {count} rollouts with a {word} label, {MIN_PER_LABEL} are needed"
                return LearningCurve(sizes=(), aurocs=np.empty((0, draws)), reason=reason)
    grams, test_grams = ([extract_ngrams(v) for v in split.views] for split in (training, test))
    largest = 2 * int(min(labels.sum(), (~labels).sum()))
    sizes = tuple(size for size in sizes if size <= largest)
    aurocs = np.full((len(sizes), draws), np.nan)
    for draw in range(draws):
        rng = randomness.stream("refit", *key, draw)
        pools = [np.flatnonzero(labels == label).tolist() for label in (True, False)]
        for pool in pools:
            rng.shuffle(pool)
        for row, size in enumerate(sizes):  # a larger subset contains the smaller ones
            chosen = [index for pool in pools for index in pool[: size // 2]]
            aurocs[row, draw] = _test_auroc(
                [grams[index] for index in chosen], labels[chosen], test_grams, test_labels
            )
    return LearningCurve(sizes=sizes, aurocs=aurocs)


def _test_auroc(
    grams: Sequence[set[str]], labels: Bools, test_grams: Sequence[set[str]], test_labels: Bools
) -> float:
    try:
        weights, bias = fit_ngram_weights("refit", grams, labels)
    except MonitorError:  # no n-gram occurs twice: nothing to fit
        return float("nan")
    scores = [bias + sum(sorted(weights.get(gram, 0.0) for gram in row)) for row in test_grams]
    area = auroc(test_labels, scores).value
    return float("nan") if area is None else area
