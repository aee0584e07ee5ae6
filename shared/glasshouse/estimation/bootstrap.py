"""Bootstrap over problems within a run, over seeds, problems and samples across runs.

    bootstrap(of_auroc(y, s), [problem], key=("auroc", "step 20"))
    bootstrap(of_auroc(y, s), [seed, problem, sample], key=("auroc", "pooled"))

Rollouts of one problem are alike, so whole problems are drawn, not rows. With several levels the
draw is nested: seeds, then problems of each drawn seed, then samples of each drawn problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.estimation.weighted_statistics import Statistic
from glasshouse.measures.result import Floats, Ints
from glasshouse.statistics import t95, wilson

RESAMPLES = 2000
UNDEFINED = 0.05
"""If more than this share of the resamples leaves a measure undefined, so is its interval."""
CHUNK = 500_000
"""Weights held at once: resamples × rows. About what a core's cache holds."""
KEPT = 4_000_000
"""Weights that are kept for the next measure of the same rows: 32 MB at most,"""
FEW = 2
"""for so many sets of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval, or the reason why there is none."""

    low: float | None
    high: float | None
    units: int
    """How many units were resampled at the top: problems, or seeds."""
    undefined: float = 0.0
    """The share of resamples in which the measure was undefined."""
    reason: str = ""

    def holds(self, value: float) -> bool:
        """Is the value within? An interval that is not there holds everything."""
        return self.low is None or self.high is None or self.low <= value <= self.high


class Nest:
    """Rows in nested groups: draws of the groups become weights of the rows."""

    def __init__(self, levels: Sequence[ArrayLike]) -> None:
        columns = [np.unique(np.asarray(level), return_inverse=True)[1] for level in levels]
        if not columns or len({len(column) for column in columns}) != 1:
            raise MonitorError("Give one group per row at each level, as in [seed, problem].")
        self.rows = len(columns[0])
        node: Ints = np.zeros(self.rows, dtype=np.int64)
        self.first: list[Ints] = []
        """Per level and parent: its first child, the others following it,"""
        self.children: list[Ints] = []
        """and how many it has."""
        for column in columns:
            # sorted by parent first, so that a parent's children stand side by side
            pairs, inner = np.unique(np.stack([node, column], axis=1), axis=0, return_inverse=True)
            counts = np.bincount(pairs[:, 0])
            self.children.append(counts)
            self.first.append(np.cumsum(counts) - counts)
            node = inner.reshape(-1)
        self.leaf = node
        """(R,) which group of the last level each row is in."""
        self.units = int(self.children[0][0]) if self.rows else 0

    def weights(self, keys: Sequence[int]) -> Floats:
        """(B, R) how often each row is drawn in the resample of each key."""
        owner = np.arange(len(keys))  # which resample each drawn group belongs to, ascending
        nodes: Ints = np.zeros(len(keys), dtype=np.int64)
        for level, (first, children) in enumerate(zip(self.first, self.children, strict=True)):
            draws = children[nodes]
            parents, owner = np.repeat(nodes, draws), np.repeat(owner, draws)
            counts = np.bincount(owner, minlength=len(keys))
            place = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
            salted = [randomness.key("level", level, key) for key in keys]
            noise = randomness.uniforms(np.array(salted, dtype=np.uint64), 0, int(counts.max()))
            chosen = (noise[owner, place] * children[parents]).astype(np.int64)
            nodes = first[parents] + np.minimum(chosen, children[parents] - 1)  # u·n may round to n
        leaves = int(self.leaf.max()) + 1
        drawn = np.bincount(owner * leaves + nodes, minlength=len(keys) * leaves)
        return drawn.reshape(len(keys), leaves)[:, self.leaf].astype(np.float64)

    def resamples(self, count: int, *key: randomness.Part) -> Iterator[Floats]:
        """(B, R) weights, some resamples at a time; how many at a time changes nothing."""
        size = max(1, CHUNK // max(1, self.rows))
        keys = [randomness.key("bootstrap", *key, b) for b in range(count)]
        for start in range(0, count, size):
            yield self.weights(keys[start : start + size])


def bootstrap(
    statistic: Statistic,
    levels: Sequence[ArrayLike],
    *,
    key: Sequence[randomness.Part],
    resamples: int = RESAMPLES,
) -> Interval:
    """The 95 % interval of a measure, by resampling the groups of `levels`, outermost first."""
    return bootstrap_all({"": statistic}, levels, key=key, resamples=resamples)[""]


def bootstrap_all(
    statistics: Mapping[str, Statistic],
    levels: Sequence[ArrayLike],
    *,
    key: Sequence[randomness.Part],
    resamples: int = RESAMPLES,
) -> dict[str, Interval]:
    """The same for several measures of the same rows, from the same resamples."""
    nest = Nest(levels)
    if nest.units < 2:
        alone = Interval(
            low=None, high=None, units=nest.units, reason="one unit alone has no interval"
        )
        return dict.fromkeys(statistics, alone)
    drawn: dict[str, list[Floats]] = {name: [] for name in statistics}
    for weights in _resampled(nest, resamples, tuple(key)):
        for name, statistic in statistics.items():
            drawn[name].append(statistic(weights))
    return {name: interval(np.concatenate(values), nest.units) for name, values in drawn.items()}


_LAST: dict[tuple[object, ...], list[Floats]] = {}


def _resampled(nest: Nest, count: int, key: tuple[randomness.Part, ...]) -> Iterable[Floats]:
    """The resamples; the last few are kept, as monitor after monitor is asked about the same rows
    under the same key, and to draw them takes longer than to read a measure off them."""
    if count * nest.rows > KEPT:
        return nest.resamples(count, *key)
    shape = [part.tobytes() for part in (nest.leaf, *nest.first, *nest.children)]
    named = (count, key, *shape)
    kept = _LAST.pop(named, None) or list(nest.resamples(count, *key))
    while len(_LAST) >= FEW:
        del _LAST[next(iter(_LAST))]  # the one that was not asked for longest
    _LAST[named] = kept
    return kept


def interval(drawn: Floats, units: int) -> Interval:
    """The expanded percentile interval of resampled values.

    The plain percentiles are too narrow for few units, as if t were normal and n − 1 were n; the
    tails are taken so much further out that for a mean they end where Student's t does (Hesterberg
    2015, "What teachers should know about the bootstrap").
    """
    known = drawn[~np.isnan(drawn)]
    missing = 1 - len(known) / len(drawn)
    if missing > UNDEFINED:
        why = f"the measure is undefined in {missing:.0%} of the resamples"
        return Interval(low=None, high=None, units=units, undefined=missing, reason=why)
    tail = 0.5 * math.erfc(t95(units - 1) * math.sqrt(units / (units - 1) / 2))
    low, high = np.quantile(known, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high), units=units, undefined=missing)


def unanimous(
    rows: ArrayLike,
    found: Interval,
    differences: bool = False,
    problems: ArrayLike | None = None,
) -> Interval:
    """The same interval, unless all rows say yes or all say no: then every resample does too, and
    an interval without width would claim a certainty that nobody has. Wilson's stands in, with the
    units as trials (given their `problems`, those that have a row that counts); for differences
    that are all zero, on both sides.

    Example: ten zeros of ten problems: 0 to 0.28; ten differences of zero: −0.28 to 0.28.
    """
    values = np.asarray(rows, dtype=np.float64)
    known = values[~np.isnan(values)]
    if not len(known) or found.low is None or not ((known == 0).all() or (known == 1).all()):
        return found
    trials = min(found.units, len(known))
    if problems is not None:
        trials = counted(values, problems)
    low, high = wilson(int(known[0]) * trials, trials)
    return replace(found, low=-high if differences and known[0] == 0 else low, high=high)


def counted(rows: ArrayLike, problems: ArrayLike) -> int:
    """How many problems have a row that is a number."""
    known = ~np.isnan(np.asarray(rows, dtype=np.float64))
    return len(np.unique(np.asarray(problems)[known]))


def by_problem(rows: ArrayLike, problems: ArrayLike) -> tuple[float, float]:
    """Wilson's interval of a rate, its problems as trials: wide, and never without width.

    Example: four samples of each of ten problems, all 1: 0.72 to 1.
    """
    values = np.asarray(rows, dtype=np.float64)
    trials = counted(values, problems)
    return wilson(round(float(np.nanmean(values)) * trials), trials) if trials else (0.0, 1.0)


def widened(found: Interval, low: float, high: float) -> Interval:
    """The same interval, unless it has no width because every resample came to the same: then it
    reaches as far as these two, which know how few problems there were."""
    if found.low is None or found.high is None or found.high - found.low > 1e-12:
        return found
    return replace(found, low=min(low, found.low), high=max(high, found.high))
