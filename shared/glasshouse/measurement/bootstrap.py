"""Bootstrap over problems within a run, over seeds, problems and samples across runs.

    bootstrap(auroc_statistic(behaviour, scores), [problem], key=("auroc", "step 20"))
    bootstrap(auroc_statistic(behaviour, scores), [seed, problem, sample], key=("auroc", "pooled"))

Rollouts of one problem are alike, so whole problems are drawn, not rows. With several levels the
draw is nested: seeds, then problems of each drawn seed, then samples of each drawn problem. No
library does this with keyed streams, on which reproducible intervals depend.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.measurement.closed_forms import t_quantile_975, wilson_interval
from glasshouse.measurement.weighted_statistics import WeightedStatistic
from glasshouse.values import Floats, Ints

RESAMPLES = 2000
MAX_UNDEFINED = 0.05
"""If more than this share of the resamples leaves a measure undefined, so is its interval."""
CHUNK_WEIGHTS = 500_000
"""Weights held at once: resamples × rows. About what a core's cache holds."""
MAX_CACHED_WEIGHTS = 4_000_000
"""Largest set of resamples that is cached for the next measure of the same rows: 32 MB."""
MAX_CACHED_SETS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval, or the reason why there is none."""

    low: float | None
    high: float | None
    units: int
    """Units resampled at the outermost level: problems, or seeds."""
    undefined: float = 0.0
    """The share of resamples in which the measure was undefined."""
    reason: str = ""


class NestedResampler:
    """Rows in nested groups: draws of the groups become weights of the rows."""

    def __init__(self, levels: Sequence[ArrayLike]) -> None:
        columns = [np.unique(np.asarray(level), return_inverse=True)[1] for level in levels]
        if not columns or len({len(column) for column in columns}) != 1:
            raise MonitorError("Give one group per row at each level, as in [seed, problem].")
        self.rows = len(columns[0])
        node: Ints = np.zeros(self.rows, dtype=np.int64)
        self.first: list[Ints] = []
        """Per level and parent: its first child; the others follow it."""
        self.children: list[Ints] = []
        """Per level and parent: its number of children."""
        for column in columns:
            # sorted by parent first, so that a parent's children are adjacent
            pairs, inner = np.unique(np.stack([node, column], axis=1), axis=0, return_inverse=True)
            counts = np.bincount(pairs[:, 0])
            self.children.append(counts)
            self.first.append(np.cumsum(counts) - counts)
            node = inner.reshape(-1)
        self.leaf = node
        """(R,) the group of the last level that each row is in."""
        self.units = int(self.children[0][0]) if self.rows else 0

    def weights(self, keys: Sequence[int]) -> Floats:
        """(B, R) how often each row is drawn in the resample of each key."""
        owner = np.arange(len(keys))  # which resample each drawn group belongs to, ascending
        nodes: Ints = np.zeros(len(keys), dtype=np.int64)
        for level, (first, children) in enumerate(zip(self.first, self.children, strict=True)):
            draws = children[nodes]
            parents, owner = np.repeat(nodes, draws), np.repeat(owner, draws)
            counts = np.bincount(owner, minlength=len(keys))
            position = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
            salted = [randomness.key("level", level, key) for key in keys]
            noise = randomness.uniforms(np.array(salted, dtype=np.uint64), 0, int(counts.max()))
            drawn = (noise[owner, position] * children[parents]).astype(np.int64)
            nodes = first[parents] + np.minimum(drawn, children[parents] - 1)  # u·n may round to n
        leaves = int(self.leaf.max()) + 1
        times = np.bincount(owner * leaves + nodes, minlength=len(keys) * leaves)
        return times.reshape(len(keys), leaves)[:, self.leaf].astype(np.float64)

    def resamples(self, count: int, *key: randomness.Part) -> Iterator[Floats]:
        """(B, R) weights in chunks; the size of a chunk changes nothing."""
        size = max(1, CHUNK_WEIGHTS // max(1, self.rows))
        keys = [randomness.key("bootstrap", *key, b) for b in range(count)]
        for start in range(0, count, size):
            yield self.weights(keys[start : start + size])


def bootstrap(
    statistic: WeightedStatistic,
    levels: Sequence[ArrayLike],
    *,
    key: Sequence[randomness.Part],
    resamples: int = RESAMPLES,
) -> Interval:
    """The 95 % interval of a measure, by resampling the groups of `levels`, outermost first. Measures of
    the same rows under the same key have the same resamples."""
    resampler = NestedResampler(levels)
    if resampler.units < 2:
        reason = "one unit alone has no interval"
        return Interval(low=None, high=None, units=resampler.units, reason=reason)
    chunks = [statistic(w) for w in _cached_resamples(resampler, resamples, tuple(key))]
    return expanded_percentile_interval(np.concatenate(chunks), resampler.units)


_CACHE: dict[tuple[object, ...], list[Floats]] = {}


def _cached_resamples(
    resampler: NestedResampler, count: int, key: tuple[randomness.Part, ...]
) -> Iterable[Floats]:
    """The resamples, cached: several monitors are measured on the same rows under the same key, and
    drawing takes longer than measuring."""
    if count * resampler.rows > MAX_CACHED_WEIGHTS:
        return resampler.resamples(count, *key)
    arrays = (resampler.leaf, *resampler.first, *resampler.children)
    cache_key = (count, key, *(array.tobytes() for array in arrays))
    weights = _CACHE.pop(cache_key, None) or list(resampler.resamples(count, *key))
    while len(_CACHE) >= MAX_CACHED_SETS:
        del _CACHE[next(iter(_CACHE))]  # the least recently used
    _CACHE[cache_key] = weights
    return weights


def expanded_percentile_interval(values: Floats, units: int) -> Interval:
    """The expanded percentile interval of resampled values.

    Plain percentiles are too narrow for few units, as if t were normal and n − 1 were n; the tails
    are taken further out, so that for a mean they end where Student's t does (Hesterberg 2015, "What
    teachers should know about the bootstrap").
    """
    known = values[~np.isnan(values)]
    missing = 1 - len(known) / len(values)
    if missing > MAX_UNDEFINED:
        reason = f"the measure is undefined in {missing:.0%} of the resamples"
        return Interval(low=None, high=None, units=units, undefined=missing, reason=reason)
    tail = 0.5 * math.erfc(t_quantile_975(units - 1) * math.sqrt(units / (units - 1) / 2))
    low, high = np.quantile(known, [tail, 1 - tail])
    return Interval(low=float(low), high=float(high), units=units, undefined=missing)


def wilson_by_problem(rows: ArrayLike, problems: ArrayLike) -> tuple[float, float]:
    """Wilson's interval of a rate with problems as trials: wide, and never without width.

    Example: four samples of each of ten problems, all 1: 0.72 to 1.
    """
    values = np.asarray(rows, dtype=np.float64)
    trials = count_problems(values, problems)
    if not trials:
        return 0.0, 1.0
    return wilson_interval(round(float(np.nanmean(values)) * trials), trials)


def count_problems(rows: ArrayLike, problems: ArrayLike) -> int:
    """The number of problems that have a row with a value."""
    known = ~np.isnan(np.asarray(rows, dtype=np.float64))
    return len(np.unique(np.asarray(problems)[known]))
