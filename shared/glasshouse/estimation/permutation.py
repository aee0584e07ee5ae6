"""Permutation nulls: what a measure would say of a monitor that knows nothing.

The monitor's verdicts stay what they are, in number and in kind; only whom they concern is dealt
out anew. Rollouts of one problem in one arm are alike, so whole blocks of them change places:
shuffled row by row, a monitor that is merely constant per problem would seem to know something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from glasshouse import randomness
from glasshouse.estimation.weighted_statistics import Reading
from glasshouse.measures.contingency import CELLS, FAILED, flags, tabulate
from glasshouse.measures.result import Bools, Floats, Ints, labels, same_length

PERMUTATIONS = 2000
EXCHANGEABLE = 0.5
"""At least this share of the rows must have a block of their size to change places with."""
CHUNK = 2_000_000
KEPT = 4_000_000
"""Places that are kept for the next monitor of the same rows: 32 MB at most,"""
FEW = 3
"""for so many ways of dealing: over all rows, within the arms, in the planted arm alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """What permuted verdicts give, beside what the verdicts gave."""

    mean: float | None
    high: float | None
    """95 % of the permutations are at or below this."""
    p: float | None
    """One-sided: how often a permutation does at least as well, itself counted once."""
    permutations: int
    reason: str = ""


def exchanges(blocks: ArrayLike, strata: ArrayLike | None = None) -> list[Ints]:
    """Row numbers (blocks, rows per block) that may change places: equal size, equal stratum."""
    block = np.unique(np.asarray(blocks), return_inverse=True)[1]
    stratum = np.zeros(len(block), dtype=np.int64)
    if strata is not None:
        stratum = np.unique(np.asarray(strata), return_inverse=True)[1]
    members: dict[tuple[int, int], list[int]] = {}
    for row, place in enumerate(zip(stratum.tolist(), block.tolist(), strict=True)):
        members.setdefault(place, []).append(row)
    alike: dict[tuple[int, int], list[list[int]]] = {}
    for (which, _), rows in members.items():
        alike.setdefault((which, len(rows)), []).append(rows)
    return [np.array(groups, dtype=np.int64) for groups in alike.values()]


def permuted(
    values: Floats, groups: Sequence[Ints], permutations: int, *key: randomness.Part
) -> Iterator[Floats]:
    """(N, R) permuted columns, some at a time."""
    for source in _sources(len(values), groups, permutations, key):
        yield values[source]


_LAST: dict[tuple[object, ...], list[Ints]] = {}


def _sources(
    rows: int, groups: Sequence[Ints], permutations: int, key: tuple[randomness.Part, ...]
) -> Iterable[Ints]:
    """(N, R) from which row each row is dealt. The last few are kept: monitor after monitor is
    permuted over the same blocks under the same key."""
    if permutations * rows > KEPT:
        return _dealt(rows, groups, permutations, key)
    named = (rows, permutations, key, *(g.shape for g in groups), *(g.tobytes() for g in groups))
    kept = _LAST.pop(named, None) or list(_dealt(rows, groups, permutations, key))
    while len(_LAST) >= FEW:
        del _LAST[next(iter(_LAST))]  # the one that was not asked for longest
    _LAST[named] = kept
    return kept


def _dealt(
    rows: int, groups: Sequence[Ints], permutations: int, key: tuple[randomness.Part, ...]
) -> Iterator[Ints]:
    size = max(1, CHUNK // max(1, rows))
    for start in range(0, permutations, size):
        count = min(size, permutations - start)
        dealt = np.repeat(np.arange(rows)[None], count, axis=0)
        for which, places in enumerate(groups):
            keys = [randomness.key("permute", *key, which, start + i) for i in range(count)]
            noise = randomness.uniforms(np.array(keys, dtype=np.uint64), 0, len(places))
            source = places[np.argsort(noise, axis=1)]  # (N, blocks, rows per block)
            dealt[:, places.ravel()] = source.reshape(count, -1)
        yield dealt


def table_null(
    read: Reading,
    x: ArrayLike | None,
    y: ArrayLike,
    z: ArrayLike,
    *,
    key: Sequence[randomness.Part],
    blocks: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    permutations: int = PERMUTATIONS,
    low_is_good: bool = False,
) -> Null:
    """The null of a rate of the contingency table. Failed verdicts stay where they are.

    `blocks`: one id per row, (problem, arm) in general; None: rows are independent. `strata` keeps
    the exchange within the arm, say: the null of a monitor that sees the plant but not its effect.
    """
    return table_nulls(
        {"": (read, low_is_good)},
        x,
        y,
        z,
        key=key,
        blocks=blocks,
        strata=strata,
        permutations=permutations,
    )[""]


def table_nulls(
    reads: Mapping[str, tuple[Reading, bool]],
    x: ArrayLike | None,
    y: ArrayLike,
    z: ArrayLike,
    *,
    key: Sequence[randomness.Part],
    blocks: ArrayLike | None = None,
    strata: ArrayLike | None = None,
    permutations: int = PERMUTATIONS,
) -> dict[str, Null]:
    """The same for several rates, each with whether low is good, from the same permutations."""
    verdicts, behaviour = flags(z), labels("y", y)
    arm = np.ones_like(behaviour) if x is None else labels("x", x)
    seen = verdicts != FAILED
    groups = _groups(seen, blocks, strata)
    place = np.eye(4)[arm * 2 + behaviour]  # (R, 4)
    failed = (~seen).astype(np.float64) @ place

    def tables(dealt: Floats) -> Floats:
        flagged = (dealt == 1).astype(np.float64) @ place
        passed = place.sum(axis=0) - failed - flagged
        counts = [passed, flagged, np.broadcast_to(failed, flagged.shape)]
        return np.stack(counts, axis=-1).reshape(-1, *CELLS)

    table = tabulate(arm, behaviour, verdicts)
    observed = {name: float(read(table)) for name, (read, _) in reads.items()}
    dealt = permuted(verdicts.astype(np.float64), groups, permutations, *key)
    drawn = [] if np.isnan(list(observed.values())).all() else [tables(d) for d in dealt]
    return {
        name: _null(
            observed[name],
            groups,
            int(seen.sum()),
            (read(d) for d in drawn),
            permutations,
            low_is_good,
        )
        for name, (read, low_is_good) in reads.items()
    }


def auroc_null(
    y: ArrayLike,
    scores: ArrayLike,
    *,
    key: Sequence[randomness.Part],
    blocks: ArrayLike | None = None,
    permutations: int = PERMUTATIONS,
) -> Null:
    """The null of the AUROC; rows without a score stay where they are."""
    behaviour, s = labels("y", y), np.asarray(scores, dtype=np.float64)
    same_length(y=behaviour, scores=s)
    seen = ~np.isnan(s)
    groups = _groups(seen, blocks, None)
    positives = int(behaviour[seen].sum())
    pairs = positives * int((~behaviour[seen]).sum())
    # Mann and Whitney: the AUROC is the positives' mean rank, shifted and scaled
    _, inverse, counts = np.unique(s[seen], return_inverse=True, return_counts=True)
    rank = np.zeros(len(s))
    rank[seen] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    least = positives * (positives + 1) / 2

    def areas(ranks: Floats) -> Floats:
        return (
            (ranks @ behaviour.astype(np.float64) - least) / pairs
            if pairs
            else ranks[:, 0] * np.nan
        )

    observed = float(areas(rank[None])[0]) if len(rank) else float("nan")
    dealt = permuted(rank, groups, permutations, *key)
    return _null(observed, groups, int(seen.sum()), (areas(d) for d in dealt), permutations, False)


def _groups(seen: Bools, blocks: ArrayLike | None, strata: ArrayLike | None) -> list[Ints]:
    rows = np.flatnonzero(seen)
    block = np.arange(len(seen)) if blocks is None else np.asarray(blocks)
    same_length(z=seen, blocks=block)
    kept = None if strata is None else np.asarray(strata)[seen]
    found = [rows[groups] for groups in exchanges(block[seen], kept)]
    return [groups for groups in found if len(groups) > 1]


def _null(
    observed: float,
    groups: list[Ints],
    seen: int,
    drawn: Iterator[Floats],
    permutations: int,
    low_is_good: bool,
) -> Null:
    if np.isnan(observed):
        why = "the measure itself is undefined"
        return Null(mean=None, high=None, p=None, permutations=0, reason=why)
    exchangeable = sum(rows.size for rows in groups) / max(1, seen)
    if exchangeable < EXCHANGEABLE:
        why = f"only {exchangeable:.0%} of the rows can change places: blocks differ in size"
        return Null(mean=None, high=None, p=None, permutations=0, reason=why)
    values = np.concatenate(list(drawn))
    sign = -1.0 if low_is_good else 1.0
    beaten = (sign * values >= sign * observed - 1e-12) | np.isnan(values)
    edge = float(np.nanquantile(sign * values, 0.95)) * sign
    p = (1 + int(beaten.sum())) / (1 + permutations)
    return Null(mean=float(np.nanmean(values)), high=edge, p=p, permutations=permutations)
