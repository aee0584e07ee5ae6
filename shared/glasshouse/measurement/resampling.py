"""Bootstrap intervals and permutation nulls over keyed streams.

Rollouts of one problem are alike, so whole problems are drawn, not rows; and whole blocks (problem, arm) are
exchanged: with rows exchanged one by one, a monitor that is constant per problem would seem informative. The same
rows and the same key give bitwise the same result, which no library offers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from glasshouse import randomness
from glasshouse.measurement.intervals import t_quantile_975, wilson_interval
from glasshouse.measurement.rates import (
    TABLE_SHAPE,
    TableStatistic,
    WeightedStatistic,
    as_flags,
    tabulate,
)
from glasshouse.values import FAILED, Bools, Floats, Ints, as_labels, check_same_length

RESAMPLES = 2000
MAX_UNDEFINED = 0.05
"""If more than this share of the resamples leaves a measure undefined, so is its interval."""
MIN_EXCHANGEABLE = 0.5
"""At least this share of the rows must have a block of equal size to be exchanged with."""
CHUNK_WEIGHTS, CHUNK_ROWS = 500_000, 2_000_000
"""Numbers held at once, resamples × rows: about what a core's cache holds."""
MAX_CACHED = 40_000_000
"""Largest set of draws that is cached for the next measure of the same rows under the same key: 80 MB
of weights, 160 MB of permutations."""

Key = Sequence[randomness.Part]


# --- intervals -----------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A 95 % interval, or the reason why there is none."""

    units: int
    """Problems that were resampled."""
    low: float | None = None
    high: float | None = None
    reason: str = ""


def bootstrap(
    statistic: WeightedStatistic, problems: ArrayLike, *, key: Key, resamples: int = RESAMPLES
) -> Interval:
    """The 95 % interval of a measure, by resampling problems. `problems`: that of each row.

    Example: `bootstrap(auroc_statistic(behaviour, scores), problem, key=("auroc", "step 20"))`
    """
    names, unit = np.unique(np.asarray(problems), return_inverse=True)
    if len(names) < 2:
        return Interval(len(names), reason="one unit alone has no interval")
    weights = draw_weights(unit, resamples, key)
    values = np.concatenate([statistic(chunk) for chunk in weights])
    return expanded_percentile_interval(values, len(names))


def draw_weights(unit: Ints, count: int, key: Key) -> Iterator[Floats]:
    """(B, R) how often each row is drawn in each resample, in chunks; their size changes nothing. `unit`
    numbers the problems from 0."""
    units, size = int(unit.max()) + 1, max(1, CHUNK_WEIGHTS // len(unit))
    is_cached = count * units <= MAX_CACHED
    draws = _cached_counts if is_cached else _draw_counts
    for times in draws(units, size, count, tuple(key)):
        yield times[:, unit].astype(np.float64)


def _draw_counts(units: int, size: int, count: int, key: Key) -> Iterator[Ints]:
    """(B, units) how often each problem is drawn, in chunks of `size` resamples."""
    keys = [randomness.key("level", 0, randomness.key("bootstrap", *key, b)) for b in range(count)]
    for start in range(0, count, size):
        chunk = np.array(keys[start : start + size], dtype=np.uint64)
        noise = randomness.uniforms(chunk, 0, units)  # (B, units)
        drawn = np.minimum((noise * units).astype(np.int64), units - 1)  # u·n may round to n
        places = drawn + np.arange(len(chunk))[:, None] * units
        times = np.bincount(places.ravel(), minlength=len(chunk) * units)
        yield times.reshape(len(chunk), units)


@lru_cache(maxsize=3)
def _cached_counts(
    units: int, size: int, count: int, key: tuple[randomness.Part, ...]
) -> list[Ints]:
    """Several measures have the same problems; drawing takes longer than measuring."""
    return [times.astype(np.uint16) for times in _draw_counts(units, size, count, key)]


def expanded_percentile_interval(values: Floats, units: int) -> Interval:
    """Percentiles of resampled values, further out than 2.5 % for few units: for a mean they end where Student's t
    does (Hesterberg 2015, "What teachers should know about the bootstrap")."""
    known = values[~np.isnan(values)]
    missing = 1 - len(known) / len(values)
    if missing > MAX_UNDEFINED:
        reason = f"the measure is undefined in {missing:.0%} of the resamples"
        return Interval(units, reason=reason)
    tail = 0.5 * math.erfc(t_quantile_975(units - 1) * math.sqrt(units / (units - 1) / 2))
    low, high = np.quantile(known, [tail, 1 - tail])
    return Interval(units, float(low), float(high))


def wilson_by_problem(rows: ArrayLike, problems: ArrayLike) -> tuple[float, float]:
    """Wilson's interval of a rate with problems as trials: wide, and never without width."""
    trials, hits = count_trials(rows, problems)
    return wilson_interval(hits, trials)


def count_trials(rows: ArrayLike, problems: ArrayLike) -> tuple[int, int]:
    """Problems that have a row with a value, and the hits among them at the rows' mean rate."""
    values = np.asarray(rows, dtype=np.float64)
    trials = len(np.unique(np.asarray(problems)[~np.isnan(values)]))
    return trials, round(float(np.nanmean(values)) * trials) if trials else 0


# --- nulls ---------------------------------------------------------------------------------------------


class Null(NamedTuple):
    """What permuted flags give, or the reason why they cannot be permuted."""

    mean: float | None = None
    p: float | None = None
    """One-sided: how often a permutation does at least as well, the observed order counted once."""
    reason: str = ""


def exchangeable_blocks(blocks: ArrayLike, strata: ArrayLike | None = None) -> list[Ints]:
    """Row numbers (blocks, rows per block) that may be exchanged: equal size, equal stratum."""
    block = np.unique(np.asarray(blocks), return_inverse=True)[1]
    stratum = np.zeros(len(block), dtype=np.int64)
    if strata is not None:
        stratum = np.unique(np.asarray(strata), return_inverse=True)[1]
    members: dict[tuple[int, int], list[int]] = {}
    for row, group in enumerate(zip(stratum.tolist(), block.tolist(), strict=True)):
        members.setdefault(group, []).append(row)
    by_size: dict[tuple[int, int], list[list[int]]] = {}
    for (which, _), rows in members.items():
        by_size.setdefault((which, len(rows)), []).append(rows)
    return [np.array(groups, dtype=np.int64) for groups in by_size.values()]


def permute_column(
    values: Floats, groups: Sequence[Ints], permutations: int, key: Key
) -> Iterator[Floats]:
    """(N, R) permuted columns in chunks."""
    sources: Iterable[Ints] = _draw_sources(len(values), groups, permutations, key)
    if permutations * len(values) <= MAX_CACHED:
        stored = tuple((group.shape, group.tobytes()) for group in groups)
        sources = _cached_sources(len(values), stored, permutations, tuple(key))
    for source in sources:
        yield values[source]


@lru_cache(maxsize=3)  # over all rows, within the arms, and in the planted arm alone
def _cached_sources(
    rows: int,
    stored: tuple[tuple[tuple[int, ...], bytes], ...],
    permutations: int,
    key: tuple[randomness.Part, ...],
) -> list[Ints]:
    groups = [np.frombuffer(data, dtype=np.int64).reshape(shape) for shape, data in stored]
    drawn = _draw_sources(rows, groups, permutations, key)
    return [sources.astype(np.int32) for sources in drawn]


def _draw_sources(rows: int, groups: Sequence[Ints], permutations: int, key: Key) -> Iterator[Ints]:
    """(N, R) the row that each row's flag comes from."""
    size = max(1, CHUNK_ROWS // max(1, rows))
    for start in range(0, permutations, size):
        count = min(size, permutations - start)
        sources = np.repeat(np.arange(rows)[None], count, axis=0)
        for which, places in enumerate(groups):
            keys = [randomness.key("permute", *key, which, start + i) for i in range(count)]
            noise = randomness.uniforms(np.array(keys, dtype=np.uint64), 0, len(places))
            source = places[np.argsort(noise, axis=1)]  # (N, blocks, rows per block)
            sources[:, places.ravel()] = source.reshape(count, -1)
        yield sources


def table_null(
    statistic: TableStatistic,
    planted: ArrayLike | None,
    behaviour: ArrayLike,
    flagged: ArrayLike,
    *,
    key: Key,
    blocks: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    permutations: int = RESAMPLES,
    low_is_good: bool = False,
) -> Null:
    """The null of a rate of the contingency table. `blocks`: one id per row, usually (problem, arm); None: rows
    are independent. `strata` keeps the exchange within the arm: the null of a monitor that sees the plant but not
    its effect. Failed verdicts are not permuted."""
    flags, shows = as_flags(flagged), as_labels("behaviour", behaviour)
    arm = np.ones_like(shows) if planted is None else as_labels("planted", planted)
    has_flag = flags != FAILED
    groups = _exchangeable_rows(has_flag, blocks, strata)
    cells = np.eye(4)[arm * 2 + shows]  # (R, 4)
    failed = (~has_flag).astype(np.float64) @ cells

    def values(permuted: Floats) -> Floats:
        positive = (permuted == 1).astype(np.float64) @ cells
        negative = cells.sum(axis=0) - failed - positive
        counts = [negative, positive, np.broadcast_to(failed, positive.shape)]
        return statistic(np.stack(counts, axis=-1).reshape(-1, *TABLE_SHAPE))

    observed = float(statistic(tabulate(arm, shows, flags)))
    permuted = permute_column(flags.astype(np.float64), groups, permutations, key)
    chunks = (values(chunk) for chunk in permuted)
    return _null(observed, groups, int(has_flag.sum()), chunks, permutations, low_is_good)


def auroc_null(
    behaviour: ArrayLike,
    scores: ArrayLike,
    *,
    key: Key,
    blocks: ArrayLike | None = None,
    permutations: int = RESAMPLES,
) -> Null:
    """The null of the AUROC; rows without a score are not permuted."""
    labels, s = as_labels("behaviour", behaviour), np.asarray(scores, dtype=np.float64)
    check_same_length(behaviour=labels, scores=s)
    has_score = ~np.isnan(s)
    groups = _exchangeable_rows(has_score, blocks, None)
    positives = int(labels[has_score].sum())
    pairs = positives * int((~labels[has_score]).sum())
    # Mann and Whitney: the AUROC is the positives' mean rank, shifted and scaled
    _, inverse, counts = np.unique(s[has_score], return_inverse=True, return_counts=True)
    rank = np.zeros(len(s))
    rank[has_score] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    smallest_sum = positives * (positives + 1) / 2

    def areas(ranks: Floats) -> Floats:
        if not pairs:
            return ranks[:, 0] * np.nan
        return (ranks @ labels.astype(np.float64) - smallest_sum) / pairs

    observed = float(areas(rank[None])[0]) if len(rank) else float("nan")
    chunks = (areas(chunk) for chunk in permute_column(rank, groups, permutations, key))
    return _null(observed, groups, int(has_score.sum()), chunks, permutations, False)


def control_null(
    rows: ArrayLike,
    control: ArrayLike,
    problems: ArrayLike,
    *,
    key: Key,
    permutations: int = RESAMPLES,
) -> Null:
    """The null of a mean over rollouts with an intervention; `control`: each rollout's value without it.
    If the intervention does nothing, which of the two is which is a coin toss, one per problem. `mean` is
    the controls' mean. Rows without a value on either side are left out."""
    values, controls = np.asarray(rows, dtype=np.float64), np.asarray(control, dtype=np.float64)
    check_same_length(rows=values, control=controls, problems=np.asarray(problems))
    known = ~(np.isnan(values) | np.isnan(controls))
    if not known.any():
        return Null(reason="no rollout has a value with and without the intervention")
    gain = (values - controls)[known]
    problem = np.unique(np.asarray(problems)[known], return_inverse=True)[1]
    sums = np.bincount(problem, weights=gain)  # (problems,)
    seed = np.array([randomness.key("control", *key)], dtype=np.uint64)
    noise = randomness.uniforms(seed, 0, permutations * len(sums)).reshape(permutations, -1)
    flipped = np.where(noise < 0.5, 1.0, -1.0) @ sums / known.sum()
    at_least = int((flipped >= gain.mean() - 1e-12).sum())
    return Null(float(controls[known].mean()), (1 + at_least) / (1 + permutations))


def _exchangeable_rows(
    has_value: Bools, blocks: ArrayLike | None, strata: ArrayLike | None
) -> list[Ints]:
    rows = np.flatnonzero(has_value)
    block = np.arange(len(has_value)) if blocks is None else np.asarray(blocks)
    check_same_length(flagged=has_value, blocks=block)
    stratum = None if strata is None else np.asarray(strata)[has_value]
    groups = [rows[group] for group in exchangeable_blocks(block[has_value], stratum)]
    return [group for group in groups if len(group) > 1]


def _null(
    observed: float,
    groups: list[Ints],
    rows: int,
    values: Iterator[Floats],
    permutations: int,
    low_is_good: bool,
) -> Null:
    if np.isnan(observed):
        return Null(reason="the measure itself is undefined")
    exchangeable = sum(group.size for group in groups) / max(1, rows)
    if exchangeable < MIN_EXCHANGEABLE:
        return Null(
            reason=f"only {exchangeable:.0%} of the rows can be exchanged: blocks differ in size"
        )
    permuted = np.concatenate(list(values))
    sign = -1.0 if low_is_good else 1.0
    as_good = (sign * permuted >= sign * observed - 1e-12) | np.isnan(permuted)
    p = (1 + int(as_good.sum())) / (1 + permutations)
    return Null(float(np.nanmean(permuted)), p)
