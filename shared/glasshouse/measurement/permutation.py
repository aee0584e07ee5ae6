"""Nulls: what a measure would be for a monitor without information, or without the intervention.

The monitor's flags stay the same in number and kind; only the rollouts they belong to are permuted.
Rollouts of one problem in one arm are alike, so whole blocks of them are exchanged: with rows
exchanged one by one, a monitor that is constant per problem would seem informative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from glasshouse import randomness
from glasshouse.measurement.contingency import TABLE_SHAPE, as_flags, tabulate
from glasshouse.measurement.weighted_statistics import TableStatistic
from glasshouse.values import FAILED, Bools, Floats, Ints, as_labels, check_same_length

PERMUTATIONS = 2000
MIN_EXCHANGEABLE = 0.5
"""At least this share of the rows must have a block of equal size to be exchanged with."""
CHUNK_ROWS = 2_000_000
MAX_CACHED_ROWS = 4_000_000
"""Largest set of permutations that is cached for the next monitor of the same rows: 32 MB."""
MAX_CACHED_SETS = 3
"""Over all rows, within the arms, and in the planted arm alone."""


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
    values: Floats, groups: Sequence[Ints], permutations: int, *key: randomness.Part
) -> Iterator[Floats]:
    """(N, R) permuted columns in chunks."""
    for source in _cached_sources(len(values), groups, permutations, key):
        yield values[source]


_CACHE: dict[tuple[object, ...], list[Ints]] = {}


def _cached_sources(
    rows: int, groups: Sequence[Ints], permutations: int, key: tuple[randomness.Part, ...]
) -> Iterable[Ints]:
    """(N, R) the row that each row's flag comes from, cached: several monitors are permuted over the
    same blocks under the same key."""
    if permutations * rows > MAX_CACHED_ROWS:
        return _draw_sources(rows, groups, permutations, key)
    arrays = (*(g.shape for g in groups), *(g.tobytes() for g in groups))
    cache_key = (rows, permutations, key, *arrays)
    sources = _CACHE.pop(cache_key, None) or list(_draw_sources(rows, groups, permutations, key))
    while len(_CACHE) >= MAX_CACHED_SETS:
        del _CACHE[next(iter(_CACHE))]  # the least recently used
    _CACHE[cache_key] = sources
    return sources


def _draw_sources(
    rows: int, groups: Sequence[Ints], permutations: int, key: tuple[randomness.Part, ...]
) -> Iterator[Ints]:
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
    key: Sequence[randomness.Part],
    blocks: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    permutations: int = PERMUTATIONS,
    low_is_good: bool = False,
) -> Null:
    """The null of a rate of the contingency table.

    `blocks`: one id per row, usually (problem, arm); None: rows are independent. `strata` keeps the
    exchange within the arm, for example: the null of a monitor that sees the plant but not its
    effect. Failed verdicts are not permuted.
    """
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
    permuted = permute_column(flags.astype(np.float64), groups, permutations, *key)
    chunks = (values(chunk) for chunk in permuted)
    return _null(observed, groups, int(has_flag.sum()), chunks, permutations, low_is_good)


def auroc_null(
    behaviour: ArrayLike,
    scores: ArrayLike,
    *,
    key: Sequence[randomness.Part],
    blocks: ArrayLike | None = None,
    permutations: int = PERMUTATIONS,
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
    permuted = permute_column(rank, groups, permutations, *key)
    values = (areas(chunk) for chunk in permuted)
    return _null(observed, groups, int(has_score.sum()), values, permutations, False)


def control_null(
    rows: ArrayLike,
    control: ArrayLike,
    problems: ArrayLike,
    *,
    key: Sequence[randomness.Part],
    permutations: int = PERMUTATIONS,
) -> Null:
    """Is the mean of `rows` above that of their controls, which had no intervention?

    Each row has a control. If the intervention does nothing, which of the two is which is a coin
    toss, one per problem. `mean` is the controls' mean. Rows without a value on either side are left out.

    Example: `control_null([1, 1, 0, 1], [0, 0, 0, 0], problems, key=("edit",)).mean` is 0.
    """
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
