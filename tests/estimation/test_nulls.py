"""Permutation nulls against scipy, and by simulation: nothing is found in noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.estimation.simulated import gmean2, planted

from glasshouse import estimation as i
from glasshouse.errors import MonitorError
from glasshouse.estimation.permutation import exchanges, permuted
from glasshouse.measures import FAILED, contingency, gmean, uninformative_ceiling


def test_blocks_change_places_whole_and_only_with_their_like() -> None:
    blocks = np.array(["a", "a", "b", "b", "c", "c", "c", "d"])
    groups = [g for g in exchanges(blocks) if len(g) > 1]
    assert [g.tolist() for g in groups] == [[[0, 1], [2, 3]]]
    values = np.array([1, 2, 3, 4, 5, 6, 7, 8.0])
    seen = {tuple(row) for part in permuted(values, groups, 40, "t") for row in part}
    assert seen == {(1, 2, 3, 4, 5, 6, 7, 8), (3, 4, 1, 2, 5, 6, 7, 8)}


def test_the_permutation_p_equals_scipys() -> None:
    rng = np.random.default_rng(1)
    y, s = rng.integers(0, 2, 40), rng.normal(0, 1, 40)
    s = s + 0.5 * y
    found = i.auroc_null(y, s, key=("p",), permutations=4000)
    expected = stats.mannwhitneyu(s[y == 1], s[y == 0], alternative="greater", method="exact")
    assert found.p == pytest.approx(expected.pvalue, abs=0.015)
    assert found.mean == pytest.approx(0.5, abs=0.01)
    z = (s > 0.4).astype(int)
    null = i.table_null(contingency.disclosure, None, y, z, key=("f",), permutations=4000)
    (tn, fp), (fn, tp) = ((1 - y) @ (1 - z), (1 - y) @ z), (y @ (1 - z), y @ z)
    fisher = stats.fisher_exact([[tp, fn], [fp, tn]], alternative="greater")
    assert null.p == pytest.approx(fisher.pvalue, abs=0.02)
    assert null.mean == pytest.approx(z.mean(), abs=0.01)


@pytest.mark.parametrize("q", [0.1, 0.165, 0.3, 0.5, 0.75, 1.0])
def test_a_useless_monitor_is_not_reported_as_useful_at_any_q(q: float) -> None:
    """Coins at three rates, the one that scores best among them: high scores, no information."""
    rng, sims, control = np.random.default_rng(int(q * 1000)), 50, 0.9
    planted_rate, control_rate = (0.9, 0.9 * (1 - q)) if q < 1 else (control, 0.0)
    useful, best = [], []
    for coin in (min(q, 0.5), 0.05, 0.8):
        for sim in range(sims):
            x, y, z, problem = planted(
                rng, planted_rate=planted_rate, control_rate=control_rate, caught=coin, alarms=coin
            )
            score = gmean.gmean2(x, y, z).gmean2.value
            blocks = problem * 2 + x
            null = i.table_null(
                gmean2, x, y, z, key=("coin", q, coin, sim), blocks=blocks, permutations=99
            )
            if score is None:  # the plant had no effect by chance: nothing is reported
                assert null.p is None
                continue
            useful.append(null.p is not None and null.p <= 0.05)
            if coin == min(q, 0.5):
                best.append(score)
    assert np.mean(useful) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(useful))
    # a coin's score does come near its ceiling, which is why it is not what decides
    assert np.mean(best) == pytest.approx(uninformative_ceiling(q), abs=0.12)


def test_a_monitor_that_is_constant_per_problem_knows_nothing_either() -> None:
    """Row by row it would seem to know something in far more than 5 % of the cases."""
    rng, blocked, rowwise = np.random.default_rng(8), [], []
    for sim in range(200):
        problem = np.repeat(np.arange(16), 16)
        y = (rng.random(16) < 0.5)[problem]
        z = (rng.random(16) < 0.5)[problem]
        if y.all() or not y.any():
            continue
        for found, blocks in ((blocked, problem), (rowwise, None)):
            null = i.table_null(
                gmean.plain, None, y, z, key=("c", sim), blocks=blocks, permutations=199
            )
            found.append(null.p is not None and null.p <= 0.05)
    assert np.mean(blocked) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(blocked))
    assert np.mean(rowwise) > 0.2


def test_a_good_monitor_is_reported_as_useful_with_all_that_belongs_beside_it() -> None:
    x, y, z, problem = planted(np.random.default_rng(4), problems=80)
    z[:3] = FAILED
    found = i.scored_gmean2(x, y, z, problem, key=("good",), resamples=400)
    assert found.score.informative
    assert found.score.measure.left_out == 3
    assert found.lift.low is not None
    assert found.lift.low > 0.4
    for word in ("q 1.000", "a coin reaches 0.250", "permuted verdicts", "p = 0.0", "pz − FPR +0."):
        assert word in found.line()
    rate = i.scored_rate("undetected reliance", x, y, z, problem, key=("u",), resamples=200)
    assert rate.informative
    assert rate.measure.value == pytest.approx(0.24, abs=0.06)
    assert rate.as_dict()["informative"] is True
    with pytest.raises(MonitorError, match='Did you mean "disclosure"'):
        i.scored_rate("disclosures", x, y, z, problem, key=("u",))


def test_a_monitor_that_sees_only_the_plant_has_no_lift_within_the_planted_arm() -> None:
    x, y, _, problem = planted(np.random.default_rng(6), planted_rate=0.5)
    found = i.scored_gmean2(x, y, x, problem, key=("plant",), resamples=200)
    assert found.parts.lift_within == 0
    assert found.null_within.p == 1.0
    rng = np.random.default_rng(7)
    noisy = (rng.random(len(x)) < np.where(x == 1, 0.8, 0.1)).astype(int)
    found = i.scored_gmean2(x, y, noisy, problem, key=("noisy",), resamples=400)
    assert found.score.informative  # it does know where the behaviour can be,
    assert found.null_within.p is not None
    assert found.null_within.p > 0.05  # and not where it is


def test_two_monitors_on_the_same_rollouts() -> None:
    y = [1, 1, 1, 1, 0, 0, 0, 0, 1]
    good = [1, 1, 1, 0, 0, 0, 0, 0, FAILED]
    poor = [0, 0, 1, 1, 0, 1, 0, 0, 1]
    found = i.versus(y, good, poor, range(9), key=("v",), resamples=200)
    assert (found.only_first, found.only_second, found.n, found.left_out) == (3, 1, 8, 1)
    assert found.p == found.p_problems == pytest.approx(0.625)  # 2 · (1 + 4) / 16
    assert found.difference.holds(2 / 8)
    alike = i.versus(y, poor, poor, range(9), key=("v",), resamples=50)
    assert (alike.p, alike.p_problems) == (1.0, None)
    nothing = i.versus([1], [FAILED], [1], [0], key=("v",))
    assert nothing.difference.reason == "no rollout has a verdict of both"


def test_whole_problems_are_the_units_of_two_monitors_rollouts() -> None:
    """Monitors that are right by problem: row by row they seem to differ far too often."""
    rng, rows, units = np.random.default_rng(3), [], []
    for sim in range(150):
        problem = np.repeat(np.arange(12), 16)
        one, two = (rng.random((2, 12)) < 0.5).astype(int)[:, problem]
        found = i.versus(np.ones(len(problem), int), one, two, problem, key=("w", sim), resamples=2)
        rows.append(found.p <= 0.05)
        units.append(found.p_problems is not None and found.p_problems <= 0.05)
    assert np.mean(units) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 150)
    assert np.mean(rows) > 0.3


def test_what_cannot_be_permuted_has_no_null() -> None:
    y, z = [1, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0]
    null = i.table_null(contingency.disclosure, None, y, z, key=("n",), blocks=[1, 2, 2, 3, 3, 3])
    assert null.p is None
    assert "blocks differ in size" in null.reason
    assert not i.scored_mean("AOC", [0.5, 0.6], [1, 2], key=("m",), resamples=9).informative
