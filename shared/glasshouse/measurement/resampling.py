"""Bootstrap intervals and permutation nulls over keyed streams.

Rollouts of one problem are alike, so whole problems are drawn, not rows; and whole blocks (problem, arm) are
exchanged: with rows exchanged one by one, a monitor that is constant per problem would seem informative. The same
rows and the same key give bitwise the same result, which no library offers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse import randomness
from glasshouse.measurement.intervals import t_quantile_975, wilson_interval
from glasshouse.measurement.rates import (
    TABLE_SHAPE,
    TableStatistic,
    WeightedStatistic,
    as_flags,
    one_hot_cells,
)
from glasshouse.values import FAILED, Bools, Floats, Ints, as_labels, check_same_length

RESAMPLES = 2000
MAX_UNDEFINED = 0.05
"""If more than this share of the resamples leaves a measure undefined, so is its interval."""
MIN_EXCHANGEABLE = 0.5
"""At least this share of the rows must have a block of equal size to be exchanged with."""
CHUNK_WEIGHTS, CHUNK_ROWS = 500_000, 2_000_000
"""Numbers held at once, resamples × rows: about what a core's cache holds."""

Key = tuple[randomness.Part, ...]


# --- intervals -----------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A 95 % interval, or the reason why there is none."""

    units: int
    """Problems that were resampled."""
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resamples:
    """Draws of whole problems, with replacement. Two sets of rollouts get the same draws of a problem."""

    units: int
    count: int
    key: Key
    names: NDArray[Any] = field(compare=False)
    """The problems, sorted."""

    @classmethod
    def of(cls, problems: ArrayLike, key: Key, count: int = RESAMPLES) -> Resamples:
        names = np.unique(np.asarray(problems))
        return cls(len(names), count, tuple(key), names)

    def weights(self, problems: ArrayLike) -> Iterator[Floats]:
        """(B, R) how often each row is drawn in each resample, in chunks; their size changes nothing."""
        unit = np.searchsorted(self.names, np.asarray(problems))
        size = max(1, CHUNK_WEIGHTS // len(unit))
        times = _draw_counts(self.units, self.count, self.key)
        for start in range(0, self.count, size):
            yield times[start : start + size][:, unit].astype(np.float64)

    def values(self, statistic: WeightedStatistic, problems: ArrayLike) -> Floats:
        return np.concatenate([statistic(chunk) for chunk in self.weights(problems)])


@lru_cache(
    maxsize=3
)  # several measures have the same problems; drawing takes longer than measuring
def _draw_counts(units: int, count: int, key: Key) -> NDArray[np.uint16]:
    """(count, units) how often each problem is drawn."""
    keys = np.array([randomness.key("bootstrap", *key, b) for b in range(count)], dtype=np.uint64)
    times, size = np.empty((count, units), dtype=np.uint16), max(1, CHUNK_WEIGHTS // units)
    for start in range(0, count, size):
        noise = randomness.uniforms(keys[start : start + size], 0, units)  # (B, units)
        drawn = np.minimum((noise * units).astype(np.int64), units - 1)  # u·n may round to n
        places = drawn + np.arange(len(drawn))[:, None] * units
        counts = np.bincount(places.ravel(), minlength=drawn.size)
        times[start : start + size] = counts.reshape(drawn.shape)
    return times


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


def exchangeable_blocks(
    has_value: Bools, blocks: ArrayLike, strata: ArrayLike | None = None
) -> list[Ints]:
    """Row numbers (blocks, rows per block) that may be exchanged: equal size, equal stratum. Rows without a value
    stay in their places."""
    check_same_length(flagged=has_value, blocks=np.asarray(blocks))
    block = np.asarray(blocks).tolist()
    stratum = np.asarray(has_value * 0 if strata is None else strata).tolist()
    members: dict[tuple[Any, Any], list[int]] = {}
    for row in np.flatnonzero(has_value).tolist():
        members.setdefault((stratum[row], block[row]), []).append(row)
    by_size: dict[tuple[Any, int], list[list[int]]] = {}
    for (which, _), rows in members.items():
        by_size.setdefault((which, len(rows)), []).append(rows)
    groups = [np.array(own, dtype=np.int64) for own in by_size.values()]
    return [group for group in groups if len(group) > 1]


def permute(values: Floats, groups: Sequence[Ints], count: int, key: Key) -> Iterator[Floats]:
    """(N, R) permuted columns in chunks."""
    size = max(1, CHUNK_ROWS // max(1, len(values)))
    for start in range(0, count, size):
        chunk = slice(start, min(start + size, count))
        permuted = np.repeat(values[None], chunk.stop - start, axis=0)
        for which, places in enumerate(groups):
            order = _draw_orders(len(places), count, (*key, which))[chunk]
            permuted[:, places.ravel()] = values[places][order].reshape(len(order), -1)
        yield permuted


@lru_cache(maxsize=4)  # over all rows, within the two arms, and in the planted arm alone
def _draw_orders(blocks: int, count: int, key: Key) -> NDArray[np.int32]:
    """(count, blocks) the block that each block's flags come from."""
    keys = np.array([randomness.key("permute", *key, i) for i in range(count)], dtype=np.uint64)
    orders, size = np.empty((count, blocks), dtype=np.int32), max(1, CHUNK_ROWS // blocks)
    for start in range(0, count, size):
        noise = randomness.uniforms(keys[start : start + size], 0, blocks)
        orders[start : start + size] = np.argsort(noise, axis=1)
    return orders


class FlagTables:
    """A monitor's contingency tables: observed, in resamples, and with permuted flags. All rates of the monitor read
    the same ones. `planted` is the arm in the table, `arm` that of the blocks, where it is another."""

    def __init__(
        self,
        planted: ArrayLike,
        behaviour: ArrayLike,
        flagged: ArrayLike,
        problems: ArrayLike,
        arm: ArrayLike | None = None,
    ) -> None:
        self.cells, self.problems = one_hot_cells(planted, behaviour, flagged), problems
        self.arm = as_labels("planted", planted if arm is None else arm)
        self.shows, self.flags = as_labels("behaviour", behaviour), as_flags(flagged)
        self.observed = self.cells.sum(axis=0).reshape(TABLE_SHAPE)

    @lru_cache(maxsize=2)  # noqa: B019 (two tables are kept at most)
    def resampled(self, draws: Resamples) -> Floats:
        """(B, 2, 2, 3)"""
        return draws.values(lambda w: w @ self.cells, self.problems).reshape(-1, *TABLE_SHAPE)

    @lru_cache(maxsize=2)  # noqa: B019
    def groups(self, within: bool) -> list[Ints]:
        """`within`: the exchange stays within the arm, the null of a monitor that sees the plant but not its effect."""
        blocks = problem_and_arm(self.problems, self.arm)
        return exchangeable_blocks(self.flags != FAILED, blocks, self.arm if within else None)

    @lru_cache(maxsize=2)  # noqa: B019
    def permuted(self, within: bool, key: Key, count: int) -> Floats:
        """(N, 2, 2, 3) the tables with permuted flags; failed verdicts are not permuted."""
        flagged, cells = (self.flags == 1).astype(np.float64), self.cells.reshape(-1, 4, 3)
        chunks = permute(flagged, self.groups(within), count, key)
        positive = np.concatenate([chunk @ cells.sum(-1) for chunk in chunks])  # (N, 4)
        failed = np.broadcast_to(cells[..., FAILED].sum(0), positive.shape)
        negative = cells.sum((0, -1)) - failed - positive
        return np.stack([negative, positive, failed], axis=-1).reshape(-1, *TABLE_SHAPE)


def problem_and_arm(problems: ArrayLike, planted: ArrayLike) -> Ints:
    """One id per (problem, arm): the block within which rollouts are alike."""
    problem = np.unique(np.asarray(problems), return_inverse=True)[1]
    return problem * 2 + as_labels("planted", planted)


def table_null(
    tables: FlagTables,
    statistic: TableStatistic,
    key: Key,
    count: int = RESAMPLES,
    *,
    within: bool = False,
    low_is_good: bool = False,
) -> Null:
    """The null of a rate of the contingency table."""
    return _null(
        float(statistic(tables.observed)),
        tables.groups(within),
        int((tables.flags != FAILED).sum()),
        lambda: statistic(tables.permuted(within, key, count)),
        low_is_good,
    )


def auroc_null(
    behaviour: ArrayLike,
    scores: ArrayLike,
    blocks: ArrayLike,
    key: Key,
    count: int = RESAMPLES,
) -> Null:
    """The null of the AUROC. `blocks`: one id per row, usually (problem, arm). Rows without a score are not
    permuted."""
    labels, s = as_labels("behaviour", behaviour), np.asarray(scores, dtype=np.float64)
    check_same_length(behaviour=labels, scores=s)
    has_score = ~np.isnan(s)
    groups = exchangeable_blocks(has_score, blocks)
    positives = int(labels[has_score].sum())
    pairs = positives * int((~labels[has_score]).sum())
    # Mann and Whitney: the AUROC is the positives' mean rank, shifted and scaled
    _, inverse, counts = np.unique(s[has_score], return_inverse=True, return_counts=True)
    rank = np.zeros(len(s))
    rank[has_score] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    def areas(ranks: Floats) -> Floats:
        smallest_sum = positives * (positives + 1) / 2
        return (ranks @ labels.astype(np.float64) - smallest_sum) / pairs

    def permuted() -> Floats:
        return np.concatenate([areas(chunk) for chunk in permute(rank, groups, count, key)])

    observed = float(areas(rank[None])[0]) if pairs else float("nan")
    return _null(observed, groups, int(has_score.sum()), permuted)


def control_null(
    rows: ArrayLike,
    control: ArrayLike,
    problems: ArrayLike,
    key: Key,
    count: int = RESAMPLES,
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
    noise = randomness.uniforms(seed, 0, count * len(sums)).reshape(count, -1)
    flipped = np.where(noise < 0.5, 1.0, -1.0) @ sums / known.sum()
    at_least = int((flipped >= gain.mean() - 1e-12).sum())
    return Null(float(controls[known].mean()), (1 + at_least) / (1 + count))


def _null(
    observed: float,
    groups: list[Ints],
    rows: int,
    permuted: Callable[[], Floats],
    low_is_good: bool = False,
) -> Null:
    if np.isnan(observed):
        return Null(reason="the measure itself is undefined")
    exchangeable = sum(group.size for group in groups) / max(1, rows)
    if exchangeable < MIN_EXCHANGEABLE:
        return Null(
            reason=f"only {exchangeable:.0%} of the rows can be exchanged: blocks differ in size"
        )
    values, sign = permuted(), -1.0 if low_is_good else 1.0
    as_good = (sign * values >= sign * observed - 1e-12) | np.isnan(values)
    return Null(float(np.nanmean(values)), (1 + int(as_good.sum())) / (1 + len(values)))
