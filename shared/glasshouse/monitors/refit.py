"""How many labelled rollouts must an auditor have, until a monitor fitted on them is good?

    labelled rollouts ──► n of them, half of either label, drawn several times ──► fit ──► AUROC on others

The answer is a curve; each draw of the n is one line of its band.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measures import Measure, auroc
from glasshouse.measures.detection import labels_needed
from glasshouse.measures.result import Floats, labels, undefined
from glasshouse.monitors.fitted import Split
from glasshouse.monitors.ngrams import ngrams, weigh

SIZES = (2, 4, 8, 16, 32, 64, 128, 200)
DRAWS = 5
TARGET = 0.95
FEWEST = 20
"""Rollouts of either label, to fit on and to test on: with fewer, a curve says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """AUROC by how many labelled rollouts a monitor was fitted on."""

    sizes: tuple[int, ...]
    areas: Floats
    """(sizes, draws); NaN where nothing could be fitted."""
    reason: str = ""
    """Why there is no curve."""

    @property
    def needed(self) -> Measure:
        """From which size on the mean over the draws holds the target."""
        if self.reason:
            return undefined(self.reason)
        means = [None if np.isnan(row).any() else float(row.mean()) for row in self.areas]
        return labels_needed(self.sizes, means, TARGET)


def refit(
    training: Split,
    test: Split,
    *,
    key: Sequence[randomness.Part],
    sizes: Sequence[int] = SIZES,
    draws: int = DRAWS,
) -> Refitted:
    """The curve of an n-gram monitor. Sizes for which there are too few rollouts are left out.

    Example: `refit(training, test, key=("audit", 0)).needed.value` is 16.0, say.
    """
    if both := set(training.problems) & set(test.problems):
        raise MonitorError(
            f"{len(both)} problems are among those for fitting and those for testing ({min(both)!r}, "
            "say); the splits must be disjoint."
        )
    y, truth = (labels("y", list(split.y)) for split in (training, test))
    for which in (y, truth):
        for wanted, said in ((True, "positive"), (False, "negative")):
            if (count := int((which == wanted).sum())) < FEWEST:
                reason = f"only {count} rollouts with a {said} label, {FEWEST} are needed"
                return Refitted(sizes=(), areas=np.empty((0, draws)), reason=reason)
    seen, unseen = ([ngrams(view) for view in split.views] for split in (training, test))
    most = 2 * int(min(y.sum(), (~y).sum()))
    chosen = tuple(size for size in sizes if size <= most)
    areas = np.full((len(chosen), draws), np.nan)
    for draw in range(draws):
        rng = randomness.stream("refit", *key, draw)
        pools = [np.flatnonzero(y == label).tolist() for label in (True, False)]
        for pool in pools:
            rng.shuffle(pool)
        for row, size in enumerate(chosen):  # a larger size holds the smaller ones
            rows = [place for pool in pools for place in pool[: size // 2]]
            areas[row, draw] = _area([seen[r] for r in rows], y[rows], unseen, truth)
    return Refitted(sizes=chosen, areas=areas)


def _area(
    grams: Sequence[set[str]], y: np.ndarray, unseen: Sequence[set[str]], truth: np.ndarray
) -> float:
    try:
        weights, bias = weigh("refit", grams, y)
    except MonitorError:  # no n-gram occurs twice: nothing to fit
        return float("nan")
    scores = [bias + sum(sorted(weights.get(gram, 0.0) for gram in row)) for row in unseen]
    area = auroc(truth, scores).value
    return float("nan") if area is None else area
