"""Permutation nulls compared with scipy, and their false positive rate in simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.measurement.simulated import gmean2_of_table, simulate_rollouts

from glasshouse.measurement import rates
from glasshouse.measurement.estimates import (
    Values,
    estimate,
    gmean2_parts,
    gmean2_values,
    mean_values,
    rate_values,
)
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.resampling import (
    auroc_null,
    exchangeable_blocks,
    permute_column,
    table_null,
)
from glasshouse.values import FAILED, Measure


def measured(values: Values, name: str = "test", resamples: int = 200) -> Measure:
    return estimate(values, lookup(name), key=("null", name), resamples=resamples)


def test_blocks_are_exchanged_whole_and_only_with_blocks_of_equal_size() -> None:
    blocks = np.array(["a", "a", "b", "b", "c", "c", "c", "d"])
    groups = [g for g in exchangeable_blocks(blocks) if len(g) > 1]
    assert [g.tolist() for g in groups] == [[[0, 1], [2, 3]]]
    values = np.array([1, 2, 3, 4, 5, 6, 7, 8.0])
    seen = {tuple(row) for part in permute_column(values, groups, 40, ("t",)) for row in part}
    assert seen == {(1, 2, 3, 4, 5, 6, 7, 8), (3, 4, 1, 2, 5, 6, 7, 8)}


def test_permutation_p_value_equals_scipy() -> None:
    rng = np.random.default_rng(1)
    y, s = rng.integers(0, 2, 40), rng.normal(0, 1, 40)
    s = s + 0.5 * y
    found = auroc_null(y, s, key=("p",), permutations=4000)
    expected = stats.mannwhitneyu(s[y == 1], s[y == 0], alternative="greater", method="exact")
    assert found.p == pytest.approx(expected.pvalue, abs=0.015)
    assert found.mean == pytest.approx(0.5, abs=0.01)
    z = (s > 0.4).astype(int)
    null = table_null(rates.disclosure, None, y, z, key=("f",), permutations=4000)
    (tn, fp), (fn, tp) = ((1 - y) @ (1 - z), (1 - y) @ z), (y @ (1 - z), y @ z)
    fisher = stats.fisher_exact([[tp, fn], [fp, tn]], alternative="greater")
    assert null.p == pytest.approx(fisher.pvalue, abs=0.02)
    assert null.mean == pytest.approx(z.mean(), abs=0.01)


@pytest.mark.parametrize("share", [0.1, 0.165, 0.3, 0.5, 0.75, 1.0])
def test_a_coin_is_not_informative_at_any_attributable_share(share: float) -> None:
    """Coins at three rates, the one that scores best among them: high scores, no information."""
    rng, sims, control = np.random.default_rng(int(share * 1000)), 50, 0.9
    planted_rate, control_rate = (0.9, 0.9 * (1 - share)) if share < 1 else (control, 0.0)
    useful, best, ceilings = [], [], []
    for coin in (min(share, 0.5), 0.05, 0.8):
        for sim in range(sims):
            x, y, z, problem = simulate_rollouts(
                rng, planted_rate=planted_rate, control_rate=control_rate, tpr=coin, fpr=coin
            )
            parts = gmean2_parts(rates.tabulate(x, y, z))
            blocks = problem * 2 + x
            null = table_null(
                gmean2_of_table,
                x,
                y,
                z,
                key=("coin", share, coin, sim),
                blocks=blocks,
                permutations=99,
            )
            if np.isnan(parts["gmean2"]):  # the plant had no effect by chance: nothing is reported
                assert null.p is None
                continue
            useful.append(null.p is not None and null.p <= 0.05)
            if coin == min(share, 0.5):
                best.append(parts["gmean2"])
                ceilings.append(parts["ceiling"])
    assert np.mean(useful) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(useful))
    # a coin's score does come near its ceiling, which is why it is not what decides
    assert np.mean(best) == pytest.approx(np.mean(ceilings), abs=0.12)


def test_a_monitor_that_is_constant_per_problem_is_not_informative() -> None:
    """Permuted row by row it would seem informative in far more than 5 % of the cases."""
    rng, blocked, rowwise = np.random.default_rng(8), [], []
    for sim in range(200):
        problem = np.repeat(np.arange(16), 16)
        y = (rng.random(16) < 0.5)[problem]
        z = (rng.random(16) < 0.5)[problem]
        if y.all() or not y.any():
            continue
        for found, blocks in ((blocked, problem), (rowwise, None)):
            null = table_null(
                rates.plain_gmean2,
                None,
                y,
                z,
                key=("c", sim),
                blocks=blocks,
                permutations=199,
            )
            found.append(null.p is not None and null.p <= 0.05)
    assert np.mean(blocked) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(blocked))
    assert np.mean(rowwise) > 0.2


def test_a_good_monitor_is_informative() -> None:
    x, y, z, problem = simulate_rollouts(np.random.default_rng(4), problems=80)
    z[:3] = FAILED
    score, informedness = (
        measured(gmean2_values(part, x, y, z, problem), resamples=400)
        for part in ("gmean2", "informedness")
    )
    assert score.informative
    assert score.left_out == 3
    assert score.ceiling == pytest.approx(0.25)
    assert informedness.low is not None
    assert informedness.low > 0.4
    undetected = measured(rate_values("undetected_use", x, y, z, problem), "m.undetected_use")
    assert undetected.informative
    assert undetected.value == pytest.approx(0.24, abs=0.06)
    assert (undetected.name, undetected.ceiling, undetected.floor) == ("m.undetected_use", 0, 1)


def test_a_monitor_that_sees_only_the_plant_has_no_informedness_within_the_planted_arm() -> None:
    x, y, _, problem = simulate_rollouts(np.random.default_rng(6), planted_rate=0.5)
    found = measured(gmean2_values("informedness_planted", x, y, x, problem))
    assert (found.value, found.p) == (0, 1.0)
    rng = np.random.default_rng(7)
    noisy = (rng.random(len(x)) < np.where(x == 1, 0.8, 0.1)).astype(int)
    overall, within = (
        measured(gmean2_values(part, x, y, noisy, problem), resamples=400)
        for part in ("gmean2", "informedness_planted")
    )
    assert overall.informative  # it does know where the behaviour can be,
    assert not within.informative  # and not where it is


def test_null_is_undefined_if_too_few_rows_are_exchangeable() -> None:
    y, z = [1, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0]
    null = table_null(rates.disclosure, None, y, z, key=("n",), blocks=[1, 2, 2, 3, 3, 3])
    assert null.p is None
    assert "blocks" in null.reason
    assert not measured(mean_values([0.5, 0.6], [1, 2])).informative


def test_gmean2_is_undefined_with_fewer_than_ten_planted_rollouts_without_the_behaviour() -> None:
    planted, problem = np.repeat([1, 0], 100), np.tile(np.arange(20), 10)
    for negatives in (3, 10):
        behaviour = np.concatenate([np.arange(100) >= negatives, np.zeros(100)]).astype(int)
        found = measured(gmean2_values("gmean2", planted, behaviour, behaviour, problem))
        assert found.value == (1 if negatives >= 10 else None)
        assert found.informative == (negatives >= 10)
        assert ("3 planted rollouts" in found.undefined) == (negatives < 10)
