"""Intervals and tests against scipy, and by simulation: they cover, and nothing is found in noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from glasshouse.errors import MonitorError
from glasshouse.monitor import inference as i
from glasshouse.monitor import measures as m
from glasshouse.monitor.inference.permutation import exchanges, permuted
from glasshouse.monitor.inference.resampling import Nest
from glasshouse.monitor.inference.resampling import interval as expanded
from glasshouse.monitor.measures import FAILED, auroc, gmean, tables, uninformative_ceiling
from glasshouse.monitor.measures.result import Floats
from glasshouse.statistics import newcombe, wilson

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def planted(
    rng: np.random.Generator,
    *,
    problems: int = 60,
    k: int = 4,
    planted_rate: float = 0.8,
    control_rate: float = 0.0,
    caught: float = 0.7,
    alarms: float = 0.1,
    between: float = 0.0,
) -> Arrays:
    """x, y, z and problem ids; `between` makes both behaviour and verdicts alike within a problem."""
    problem = np.repeat(np.arange(problems), 2 * k)
    x = np.tile(np.repeat([1, 0], k), problems)
    mood, eye = rng.normal(0, between, (2, problems))[:, problem]
    y = rng.random(len(x)) < _shift(np.where(x == 1, planted_rate, control_rate), mood)
    z = rng.random(len(x)) < _shift(np.where((x == 1) & y, caught, alarms), eye)
    return x, y.astype(int), z.astype(int), problem


def _shift(rate: np.ndarray, by: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 1 / (1 + np.exp(-(np.log(rate) - np.log1p(-rate) + by)))


def gmean2(table: Floats) -> Floats:
    return gmean.parts(table)["gmean2"]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 1, FAILED])),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 3),
)
def test_what_is_resampled_is_the_measure_itself(
    rows: list[tuple[bool, bool, int]], w: int
) -> None:
    """Weights of one give the measure, and a weight of w is w rows: undefined in the same places."""
    x, y, z = (list(column) for column in zip(*rows, strict=True))
    pairs = [
        (tables.total_effect, lambda x, y, z: m.reliance(x, y)),
        (tables.disclosure, lambda x, y, z: m.disclosure(y, z)),
        (tables.true_negative_rate, lambda x, y, z: m.true_negative_rate(y, z)),
        (tables.undetected, m.undetected_reliance),
        (gmean.plain, lambda x, y, z: m.gmean2_plain(y, z)),
        (gmean2, lambda x, y, z: m.gmean2(x, y, z).gmean2),
    ]
    weights = np.ones((2, len(rows)))
    weights[1, 0] = w
    repeated = [rows[0]] * w + rows[1:]
    for read, measure in pairs:
        once, again = i.of_table(read, x, y, z)(weights)
        expected = [measure(x, y, z).value]
        columns = list(zip(*repeated, strict=True)) or [(), (), ()]
        expected.append(measure(*columns).value)
        assert [once, again] == pytest.approx(
            [np.nan if e is None else e for e in expected], nan_ok=True, abs=1e-12
        )


# --- bootstrap -----------------------------------------------------------------------------------


def test_a_resample_draws_as_many_units_as_there_are_and_keeps_them_whole() -> None:
    problem = np.array([5, 5, 2, 2, 2, 9])
    weights = next(Nest([problem]).resamples(50, "test"))
    for row in weights:
        drawn = [row[0], row[2], row[5]]
        assert row.tolist() == [drawn[0]] * 2 + [drawn[1]] * 3 + [drawn[2]]
        assert sum(drawn) == 3


def test_nested_draws_go_through_every_level() -> None:
    seed = np.repeat([0, 1, 2], 8)
    problem = np.tile(np.repeat([0, 1], 4), 3)  # problem 0 of seed 1 is not problem 0 of seed 0
    nest = Nest([seed, problem, np.arange(24)])
    weights = nest.weights(range(4000))
    assert nest.units == 3
    assert (weights.sum(axis=1) == 24).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(24), abs=0.15)
    per_seed = weights.reshape(-1, 3, 8).sum(axis=2) / 8
    assert set(per_seed.ravel()) == {0.0, 1.0, 2.0, 3.0}  # seeds are drawn whole
    assert per_seed.var() == pytest.approx(2 / 3, abs=0.05)  # of a binomial(3, 1/3)


def test_the_bootstrap_of_a_mean_agrees_with_students_t() -> None:
    values = np.random.default_rng(3).normal(0, 1, 200)
    found = i.bootstrap(i.of_mean(values), [np.arange(200)], key=("t",), resamples=8000)
    expected = stats.t.interval(0.95, 199, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, abs=0.012)
    assert found.units == 200


def test_the_same_key_gives_the_same_bits_and_another_key_others() -> None:
    x, y, z, problem = planted(np.random.default_rng(0))
    first, again, other = (
        i.bootstrap(i.of_table(tables.disclosure, x, y, z), [problem], key=key, resamples=200)
        for key in (("a", 1), ("a", 1), ("b", 1))
    )
    assert first == again != other


def test_an_interval_is_undefined_where_the_measure_often_is() -> None:
    y = np.array([1] + [0] * 19)  # one positive: a third of the resamples has none
    found = i.bootstrap(i.of_auroc(y, np.arange(20.0)), [np.arange(20)], key=("few",))
    assert found.low is None
    assert "undefined in" in found.reason
    assert found.undefined == pytest.approx(math.exp(-1), abs=0.05)
    assert found.holds(123)
    alone = i.bootstrap(i.of_mean([1.0, 2.0]), [np.array([7, 7])], key=("one",))
    assert "one unit alone" in alone.reason


def _coverage(found: Sequence[i.Interval], truth: float) -> float:
    assert all(interval.low is not None for interval in found)
    return float(np.mean([interval.holds(truth) for interval in found]))


def _holds_its_rate(covered: float, n: int) -> bool:
    """Within four standard errors of 95 %, and not below 92 %."""
    return covered >= max(0.92, 0.95 - 4 * math.sqrt(0.95 * 0.05 / n))


def test_cluster_intervals_cover_where_rows_of_a_problem_are_alike() -> None:
    """Disclosure of a monitor of known quality; resampling rows instead would not do."""
    sims, rng = 200, np.random.default_rng(11)
    options = {"problems": 60, "k": 4, "planted_rate": 0.6, "caught": 0.7, "between": 2.5}
    many = planted(rng, **{**options, "problems": 40_000})  # type: ignore[arg-type]
    truth = float(tables.disclosure(tables.tabulate(*many[:3])))
    clustered, naive = [], []
    for sim in range(sims):
        x, y, z, problem = planted(rng, **options)  # type: ignore[arg-type]
        statistic = i.of_table(tables.disclosure, x, y, z)
        clustered.append(i.bootstrap(statistic, [problem], key=("cover", sim), resamples=400))
        if sim < 100:
            rows = [np.arange(len(x))]
            naive.append(i.bootstrap(statistic, rows, key=("naive", sim), resamples=200))
    assert _holds_its_rate(_coverage(clustered, truth), sims)
    assert _coverage(naive, truth) < 0.88


def test_gmean2_and_auroc_of_a_monitor_of_known_quality_are_found_and_covered() -> None:
    """q = 0.75 exactly; TPR = 0.6/0.75, TNR = 0.9; scores are normal, one apart."""
    sims, rng = 200, np.random.default_rng(5)
    truth = 0.6 / 0.75 * 0.9
    area = stats.norm.cdf(1 / math.sqrt(2))
    products, areas, points = [], [], []
    for sim in range(sims):
        x, y, z, problem = planted(
            rng, problems=100, planted_rate=0.8, control_rate=0.2, caught=0.6, alarms=0.1
        )
        positive = (x == 1) & (y == 1)
        scores = rng.normal(positive, 1)
        read = i.of_table(gmean2, x, y, z)
        products.append(i.bootstrap(read, [problem], key=("g", sim), resamples=400))
        areas.append(
            i.bootstrap(i.of_auroc(positive, scores), [problem], key=("a", sim), resamples=400)
        )
        points.append((gmean.gmean2(x, y, z).gmean2.value, auroc(positive, scores).value))
    assert np.mean(points, axis=0) == pytest.approx([truth, area], abs=0.005)
    assert _holds_its_rate(_coverage(products, truth), sims)
    assert _holds_its_rate(_coverage(areas, area), sims)


def test_pooled_intervals_cover_with_eight_seeds() -> None:
    """Seeds differ, problems within them differ, rows scatter. Plain percentiles would fall short."""
    sims, rng = 200, np.random.default_rng(7)
    seed = np.repeat(np.arange(8), 20 * 3)
    problem = np.tile(np.repeat(np.arange(20), 3), 8)
    covered, plain = [], []
    for sim in range(sims):
        rows = (
            0.5
            + rng.normal(0, 0.2, 8)[seed]
            + rng.normal(0, 0.2, 160)[seed * 20 + problem]
            + rng.normal(0, 0.1, len(seed))
        )
        levels = [seed, problem, np.arange(len(rows))]
        covered.append(i.bootstrap(i.of_mean(rows), levels, key=("pool", sim), resamples=400))
        draws = Nest([seed]).resamples(200, "plain", sim)
        means = np.concatenate([i.of_mean(rows)(weights) for weights in draws])
        low, high = np.quantile(means, [0.025, 0.975])
        plain.append(low <= 0.5 <= high)
    assert _holds_its_rate(_coverage(covered, 0.5), sims)
    assert np.mean(plain) < 0.93


def test_students_interval_over_paired_seeds_covers_and_the_sign_flip_test_is_exact() -> None:
    sims, rng = 600, np.random.default_rng(2)
    arms = rng.normal(0.3, 0.1, (sims, 2, 8)) + rng.normal(0, 0.2, (sims, 1, 8))
    found = [i.paired(*sim.tolist()) for sim in arms]
    assert _holds_its_rate(float(np.mean([f.low <= 0 <= f.high for f in found])), sims)
    p = np.array([f.p for f in found])
    for alpha in (0.02, 0.05, 0.2):
        assert (p <= alpha).mean() <= alpha + 4 * math.sqrt(alpha / sims)
    assert (p <= 0.2).mean() > 0.12  # exact, not merely careful


# --- permutation nulls ---------------------------------------------------------------------------


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
    null = i.table_null(tables.disclosure, None, y, z, key=("f",), permutations=4000)
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
    null = i.table_null(tables.disclosure, None, y, z, key=("n",), blocks=[1, 2, 2, 3, 3, 3])
    assert null.p is None
    assert "blocks differ in size" in null.reason
    assert not i.scored_mean("AOC", [0.5, 0.6], [1, 2], key=("m",), resamples=9).informative


# --- seeds ---------------------------------------------------------------------------------------


def test_three_worked_pairs() -> None:
    found = i.paired([0.9, 0.8, 0.85, None], [0.5, 0.5, 0.6, 0.1])
    assert found.effect == pytest.approx(0.95 / 3)
    assert (found.p, found.smallest_p, found.n, found.dropped) == (0.25, 0.25, 3, 1)
    assert not found.shown
    assert "two are needed" in i.paired([1.0, None], [0.5, 0.5]).reason
    with pytest.raises(MonitorError, match="the same seeds"):
        i.paired([1.0], [1.0, 2.0])


@pytest.mark.parametrize("n", [5, 8, 12])
def test_the_sign_flip_test_equals_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, n)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert i.sign_flip(values.tolist()) == pytest.approx(expected.pvalue)


def test_beyond_sixteen_seeds_the_test_is_drawn_and_close_to_students() -> None:
    values = np.random.default_rng(9).normal(0.4, 1, 30)
    assert i.sign_flip(values.tolist()) == pytest.approx(
        stats.ttest_1samp(values, 0).pvalue, abs=0.01
    )


def test_equal_sums_in_another_order_are_equally_extreme() -> None:
    assert i.sign_flip([0.1, 0.2, 0.3]) == i.sign_flip([1, 2, 3]) == 0.25
    assert i.sign_flip([0.8, 0.1, 0.5]) == 0.25  # added one by one they fall short of their sum
    assert i.sign_flip([0.0, 0.0]) == 1.0


def test_holm_over_arms_decides_what_is_shown() -> None:
    clear = i.over_seeds([0.3, 0.31, 0.29, 0.33, 0.3, 0.28, 0.32, 0.31])
    assert clear.shown
    assert clear.p == 2 / 256
    alone, *_ = i.family([clear])
    assert alone.p_holm == clear.p
    many = i.family([clear] * 7)
    assert many[0].p_holm == pytest.approx(7 * 2 / 256)
    assert not many[0].shown  # the same effect among seven comparisons
    undefined = i.over_seeds([0.3])
    assert i.family([clear, undefined])[1].p_holm is None


def test_a_trend_over_seeds_is_the_test_of_their_slopes() -> None:
    assert i.slope([0, 10, 20], [0.1, 0.3, 0.5]) == pytest.approx(0.02)
    assert i.slope([0, 10, 20], [0.1, None, 0.5]) == pytest.approx(0.02)
    assert i.slope([0, 10], [0.1, None]) is None


# --- matched -------------------------------------------------------------------------------------


def test_matched_accuracy_takes_out_what_is_only_accuracy() -> None:
    """The measure is 1 − accuracy in both arms; one arm merely learns more slowly."""
    rng = np.random.default_rng(0)
    fast, slow = {}, {}
    for seed in range(8):
        jitter = float(rng.normal(0, 0.02))
        for arm, pace in ((fast, 0.2), (slow, 0.1)):
            accuracy = [0.1 + pace * t + jitter for t in range(5)]
            arm[seed] = i.Curve(range(5), accuracy, [1 - a for a in accuracy])
    at_step = i.matched_step(slow, fast, 4)
    assert at_step.effect == pytest.approx(0.4)
    assert at_step.shown
    shared = i.shared_accuracy(slow, fast)
    assert shared is not None
    matched = i.matched_accuracy(slow, fast, sum(shared) / 2)
    assert matched.n == 8
    assert matched.effect == pytest.approx(0, abs=1e-12)


def test_the_worked_crossing_and_its_absence() -> None:
    curve = i.Curve([0, 10, 20], [0.2, 0.6, 0.4], [1.0, 0.5, None])
    assert i.at_accuracy(curve, 0.4).value == pytest.approx(0.75)  # the first passage
    assert i.at_accuracy(curve, 0.6).value == 0.5
    assert i.at_accuracy(curve, 0.7).reason == "accuracy never passes 0.7"
    falling = i.Curve([0, 10], [0.6, 0.2], [0.0, 1.0])
    assert i.at_accuracy(falling, 0.4).value == pytest.approx(0.5)
    assert "undefined at step 20" in i.at_step(curve, 20).reason
    assert "no checkpoint at step 5" in i.at_step(curve, 5).reason
    assert i.shared_accuracy({0: curve}, {0: i.Curve([0], [0.9], [1.0])}) is None
    with pytest.raises(MonitorError, match="only one arm has"):
        i.matched_step({0: curve, 1: curve}, {0: curve}, 0)
    with pytest.raises(MonitorError, match="must rise"):
        i.Curve([10, 0], [0.1, 0.2], [0.0, 0.0])


def test_the_expanded_percentiles_end_where_students_t_does() -> None:
    normal: Floats = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    found = expanded(normal, 8)
    assert found.high == pytest.approx(stats.t.ppf(0.975, 7) * math.sqrt(8 / 7), abs=0.01)


def test_where_all_rows_agree_an_interval_still_has_a_width() -> None:
    """Every resample of unanimous rows is the same: a bootstrap alone would claim certainty."""
    problem = np.repeat(np.arange(20), 4)
    x, y = np.tile([1, 1, 0, 0], 20), np.tile([1, 1, 0, 0], 20)
    z = y  # a perfect monitor of a behaviour that the plant always causes
    how = {"key": ("agree",), "resamples": 200}
    low_of_twenty = wilson(20, 20)[0]
    rates = i.scored_rates(["disclosure", "tnr", "undetected reliance"], x, y, z, problem, **how)
    assert rates["disclosure"].interval.low == pytest.approx(low_of_twenty)
    assert rates["tnr"].interval.low == pytest.approx(low_of_twenty)
    assert rates["undetected reliance"].interval.high == pytest.approx(1 - low_of_twenty)
    plain = i.scored_rate("g-mean²", x, y, z, problem, **how)
    assert plain.interval.low == pytest.approx(low_of_twenty**2)
    assert plain.ceiling == 0.25
    assert i.scored_mean("right", y[x == 1], problem[x == 1], **how).interval.low == pytest.approx(
        low_of_twenty
    )
    assert i.scored_auroc(y, z, problem, **how).interval.low == pytest.approx(low_of_twenty)
    blind = i.scored_auroc(y, np.zeros(80), problem, **how).interval
    assert (blind.low, blind.high) == pytest.approx((low_of_twenty / 2, 1 - low_of_twenty / 2))
    reliance = i.scored_reliance(x, y, problem, **how)
    assert reliance.interval.low == pytest.approx(newcombe(20, 20, 0, 20)[0])
    assert reliance.informative
    both = i.scored_gmean2(x, y, z, problem, **how)
    assert both.score.interval.low < 0.75 < 1 == both.score.interval.high
    assert both.lift.low is not None
    assert both.lift.low < 0.75


def test_trials_are_problems_with_a_row_that_counts_not_rows() -> None:
    """Forty uses of three problems are not forty trials."""
    problem = np.concatenate([np.repeat([0, 1, 2], 14), np.arange(3, 60)])
    y = np.array([1] * 42 + [0] * 57)
    found = i.scored_rate("disclosure", np.ones(99), y, y, problem, key=("few",), resamples=100)
    assert found.interval.low == pytest.approx(wilson(3, 3)[0])


def test_several_rates_at_once_are_what_each_is_alone() -> None:
    rng = np.random.default_rng(5)
    problem = np.repeat(np.arange(30), 4)
    x, y = np.tile([0, 0, 1, 1], 30), rng.integers(0, 2, 120)
    z = rng.integers(-1, 2, 120)
    names = ["disclosure", "tnr"]
    together = i.scored_rates(names, x, y, z, problem, key=("k",), resamples=100)
    alone = {n: i.scored_rates([n], x, y, z, problem, key=("k",), resamples=100)[n] for n in names}
    assert together == alone
