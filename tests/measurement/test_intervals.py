"""Intervals, permutation nulls and comparisons over seeds: against closed forms and libraries, and in simulations."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep
from tests.measurement.simulated import (
    columns,
    contains,
    flags,
    gmean2_of_table,
    has_nominal_coverage,
    simulate_rollouts,
)

from glasshouse.measurement import rates
from glasshouse.measurement.columns import Scores
from glasshouse.measurement.estimates import (
    RATES,
    Values,
    auroc_values,
    estimate,
    gmean2_values,
    mean_values,
    rate_values,
    reliance_values,
)
from glasshouse.measurement.intervals import (
    clustered_rate_interval,
    compare_differences,
    compare_paired,
    estimate_interaction,
    holm_adjust,
    holm_correct,
    mean_interval,
    newcombe_interval,
    pass_at_k,
    sign_flip_test,
    wilson_interval,
)
from glasshouse.measurement.rates import gmean2_parts
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.resampling import (
    FlagTables,
    Interval,
    Null,
    Resamples,
    auroc_null,
    control_null,
    exchangeable_blocks,
    expanded_percentile_interval,
    permute,
    table_null,
)
from glasshouse.values import FAILED, Floats, Measure


def measured(values: Values, name: str = "test", resamples: int = 200) -> Measure:
    return estimate(values, lookup(name), key=("agree",), resamples=resamples)


def interval_of(values: Values, key: tuple[Any, ...], resamples: int = 2000) -> Interval:
    found = estimate(
        replace(values, ends=None, null=None), lookup("test"), key=key, resamples=resamples
    )
    return Interval(found.units, found.low, found.high, found.undefined)


def null_of(statistic: Any, x: Any, y: Any, z: Any, problem: Any, key: Any, count: int) -> Null:
    return table_null(FlagTables(x, y, z, problem), statistic, key, count)


def test_a_resample_draws_whole_units_and_as_many_as_exist() -> None:
    problem = np.array([5, 5, 2, 2, 2, 9])
    weights = next(Resamples.of(problem, ("test",), 50).weights(problem))
    for row in weights:
        drawn = [row[0], row[2], row[5]]
        assert row.tolist() == [drawn[0]] * 2 + [drawn[1]] * 3 + [drawn[2]]
        assert sum(drawn) == 3


def test_bootstrap_is_a_function_of_its_key() -> None:
    x, y, z, problem = simulate_rollouts(np.random.default_rng(0))
    first, again, other = (
        interval_of(rate_values("disclosure", columns(x, y, problem), flags(z)), key, 200)
        for key in (("a", 1), ("a", 1), ("b", 1))
    )
    assert first == again != other


def test_interval_is_undefined_if_the_measure_often_is() -> None:
    y = np.array([1] + [0] * 19)  # one positive: a third of the resamples has none
    monitor = Scores(monitor="m", scores=np.arange(20.0))
    found = interval_of(auroc_values(columns(np.ones(20), y, np.arange(20)), monitor), ("few",))
    assert found.low is None
    assert "undefined in" in found.reason
    alone = interval_of(mean_values([1.0, 2.0], np.array([7, 7])), ("one",))
    assert "one unit" in alone.reason


def test_expanded_percentiles_end_where_students_t_does() -> None:
    normal: Floats = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    found = expanded_percentile_interval(normal, 8)
    assert found.high == pytest.approx(stats.t.ppf(0.975, 7) * math.sqrt(8 / 7), abs=0.01)


def _coverage(intervals: Sequence[Interval], truth: float) -> float:
    return float(np.mean([contains(interval, truth) for interval in intervals]))


def test_cluster_bootstrap_covers_where_rows_of_a_problem_are_alike() -> None:
    """Disclosure of a monitor of known quality; resampling rows instead gives intervals that are too narrow."""
    sims, rng = 200, np.random.default_rng(11)
    options = {"problems": 60, "k": 4, "planted_rate": 0.6, "tpr": 0.7, "between": 2.5}
    many = simulate_rollouts(rng, **{**options, "problems": 40_000})  # type: ignore[arg-type]
    truth = float(rates.disclosure(rates.tabulate(*many[:3])))
    clustered, naive = [], []
    for sim in range(sims):
        x, y, z, problem = simulate_rollouts(rng, **options)  # type: ignore[arg-type]
        for key, units, found in (
            (("cover", sim), problem, clustered),
            (("naive", sim), np.arange(len(x)), naive),
        ):
            values = rate_values("disclosure", columns(x, y, units), flags(z))
            found.append(interval_of(values, key, 200))
    assert has_nominal_coverage(_coverage(clustered, truth), sims)
    assert _coverage(naive, truth) < 0.88


def test_intervals_of_gmean2_and_auroc_cover_the_known_truth() -> None:
    """Attributable share 0.75; TPR = 0.6/0.75, TNR = 0.9; scores are normal, one apart."""
    sims, rng = 200, np.random.default_rng(5)
    truth = 0.6 / 0.75 * 0.9
    area = stats.norm.cdf(1 / math.sqrt(2))
    products, areas, points = [], [], []
    for sim in range(sims):
        x, y, z, problem = simulate_rollouts(
            rng, problems=100, planted_rate=0.8, control_rate=0.2, tpr=0.6, fpr=0.1
        )
        positive = (x == 1) & (y == 1)
        scores = rng.normal(positive, 1)
        values = gmean2_values("gmean2", columns(x, y, problem), flags(z))
        products.append(interval_of(values, ("g", sim), 200))
        monitor = Scores(monitor="m", scores=scores)
        values = auroc_values(columns(x, positive, problem), monitor)
        areas.append(interval_of(values, ("a", sim), 200))
        table = rates.tabulate(x, y, z)
        points.append((gmean2_of_table(table), rates.auroc(positive, scores).value))
    assert np.mean(points, axis=0) == pytest.approx([truth, area], abs=0.005)
    assert has_nominal_coverage(_coverage(products, truth), sims)
    assert has_nominal_coverage(_coverage(areas, area), sims)


def test_intervals_of_unanimous_rows_have_a_width() -> None:
    """Every resample of unanimous rows is the same: a bootstrap alone would have no width."""
    problem = np.repeat(np.arange(20), 4)
    x, y = np.tile([1, 1, 0, 0], 20), np.tile([1, 1, 0, 0], 20)
    z = y  # a perfect monitor of a behaviour that the plant always causes
    low_of_twenty = wilson_interval(20, 20)[0]
    c, monitor = columns(x, y, problem), flags(z)
    rates = {name: measured(rate_values(name, c, monitor)) for name in RATES}
    assert rates["disclosure"].low == pytest.approx(low_of_twenty)
    assert rates["tnr"].low == pytest.approx(low_of_twenty)
    assert rates["undetected_use"].high == pytest.approx(1 - low_of_twenty)
    assert rates["gmean2"].low == pytest.approx(low_of_twenty**2)
    assert rates["gmean2"].ceiling == 0.25
    mean = measured(mean_values(y[x == 1], problem[x == 1]))
    assert mean.low == pytest.approx(low_of_twenty)
    assert measured(auroc_values(c, monitor)).low == pytest.approx(low_of_twenty)
    blind = measured(auroc_values(c, flags(np.zeros(80))))
    assert (blind.low, blind.high) == pytest.approx((low_of_twenty / 2, 1 - low_of_twenty / 2))
    reliance = measured(reliance_values(c))
    assert reliance.low == pytest.approx(newcombe_interval(20, 20, 0, 20)[0])
    assert reliance.informative
    both = measured(gmean2_values("gmean2", c, monitor))
    assert both.low < 0.75 < 1 == both.high
    informedness = measured(gmean2_values("informedness", c, monitor))
    assert informedness.low < 0.75


def test_forty_uses_of_three_problems_are_not_forty_trials() -> None:
    problem = np.concatenate([np.repeat([0, 1, 2], 14), np.arange(3, 60)])
    y = np.array([1] * 42 + [0] * 57)
    found = measured(rate_values("disclosure", columns(np.ones(99), y, problem), flags(y)))
    assert found.low == pytest.approx(wilson_interval(3, 3)[0])


def test_equal_differences_have_an_interval_on_both_sides() -> None:
    """Wilson's interval of 0 of 10 is 0 to 0.2775."""
    values, problems = [0.0] * 10 + [np.nan], list("abcdefghijk")
    same = measured(mean_values(values, problems))
    assert (same.low, same.high) == (0, pytest.approx(0.2775, abs=1e-4))
    same = measured(mean_values(values, problems, is_difference=True))
    assert same.low == pytest.approx(-0.2775, abs=1e-4)


def test_control_null_by_hand() -> None:
    values, control = [1, 1, 1, 1, np.nan], [0, 0, 0, 1, 0]
    null = control_null(values, control, list("abcde"), key=("hand",), count=4000)
    assert null.mean == 0.25
    # three differences of one: all three signs must agree, with probability 1/4, half of it positive
    assert null.p == pytest.approx(1 / 8, abs=0.02)
    assert control_null([np.nan], [0], ["a"], key=("hand",)).p is None
    same = control_null([1, 0, 1, 0], [1, 0, 1, 0], list("abcd"), key=("hand",))
    assert same.p == 1


def test_blocks_are_exchanged_whole_and_only_with_blocks_of_equal_size() -> None:
    blocks = np.array(["a", "a", "b", "b", "c", "c", "c", "d"])
    groups = exchangeable_blocks(np.ones(8, dtype=bool), blocks)
    assert [g.tolist() for g in groups] == [[[0, 1], [2, 3]]]
    values = np.array([1, 2, 3, 4, 5, 6, 7, 8.0])
    seen = {tuple(row) for part in permute(values, groups, 40, ("t",)) for row in part}
    assert seen == {(1, 2, 3, 4, 5, 6, 7, 8), (3, 4, 1, 2, 5, 6, 7, 8)}


def test_permutation_p_value_equals_scipy() -> None:
    rng = np.random.default_rng(1)
    y, s = rng.integers(0, 2, 40), rng.normal(0, 1, 40)
    s = s + 0.5 * y
    found = auroc_null(y, s, np.arange(40), ("p",), 4000)
    expected = stats.mannwhitneyu(s[y == 1], s[y == 0], alternative="greater", method="exact")
    assert found.p == pytest.approx(expected.pvalue, abs=0.015)
    assert found.mean == pytest.approx(0.5, abs=0.01)
    z = (s > 0.4).astype(int)
    null = null_of(rates.disclosure, np.ones(40), y, z, np.arange(40), ("f",), 4000)
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
            key = ("coin", share, coin, sim)
            null = null_of(gmean2_of_table, x, y, z, problem, key, 99)
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
        for found, units in ((blocked, problem), (rowwise, np.arange(256))):
            null = null_of(rates.plain_gmean2, np.ones(256), y, z, units, ("c", sim), 199)
            found.append(null.p is not None and null.p <= 0.05)
    assert np.mean(blocked) <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / len(blocked))
    assert np.mean(rowwise) > 0.2


def test_a_good_monitor_is_informative() -> None:
    x, y, z, problem = simulate_rollouts(np.random.default_rng(4), problems=80)
    z[:3] = FAILED
    score, informedness = (
        measured(gmean2_values(part, columns(x, y, problem), flags(z)), resamples=400)
        for part in ("gmean2", "informedness")
    )
    assert score.informative
    assert score.left_out == 3
    assert score.ceiling == pytest.approx(0.25)
    assert informedness.low > 0.4
    undetected = measured(
        rate_values("undetected_use", columns(x, y, problem), flags(z)), "m.undetected_use"
    )
    assert undetected.informative
    assert undetected.value == pytest.approx(0.24, abs=0.06)
    assert (undetected.name, undetected.ceiling, undetected.floor) == ("m.undetected_use", 0, 1)


def test_a_monitor_that_sees_only_the_plant_has_no_informedness_within_the_planted_arm() -> None:
    x, y, _, problem = simulate_rollouts(np.random.default_rng(6), planted_rate=0.5)
    found = measured(gmean2_values("informedness_planted", columns(x, y, problem), flags(x)))
    assert (found.value, found.p) == (0, 1.0)
    rng = np.random.default_rng(7)
    noisy = (rng.random(len(x)) < np.where(x == 1, 0.8, 0.1)).astype(int)
    overall, within = (
        measured(gmean2_values(part, columns(x, y, problem), flags(noisy)), resamples=400)
        for part in ("gmean2", "informedness_planted")
    )
    assert overall.informative  # it does know where the behaviour can be,
    assert not within.informative  # and not where it is


def test_null_is_undefined_if_too_few_rows_are_exchangeable() -> None:
    y, z = [1, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0]
    null = null_of(rates.disclosure, np.ones(6), y, z, [1, 2, 2, 3, 3, 3], ("n",), 2000)
    assert null.p is None
    assert "blocks" in null.reason
    assert not measured(mean_values([0.5, 0.6], [1, 2])).informative


def test_gmean2_is_undefined_with_fewer_than_ten_planted_rollouts_without_the_behaviour() -> None:
    planted, problem = np.repeat([1, 0], 100), np.tile(np.arange(20), 10)
    for negatives in (3, 10):
        behaviour = np.concatenate([np.arange(100) >= negatives, np.zeros(100)]).astype(int)
        found = measured(
            gmean2_values("gmean2", columns(planted, behaviour, problem), flags(behaviour))
        )
        assert found.value == (1 if negatives >= 10 else None)
        assert found.informative == (negatives >= 10)
        assert ("3 planted rollouts" in found.undefined) == (negatives < 10)


def test_interval_over_paired_seeds_covers_and_sign_flip_test_is_exact() -> None:
    sims, rng = 600, np.random.default_rng(2)
    arms = rng.normal(0.3, 0.1, (sims, 2, 8)) + rng.normal(0, 0.2, (sims, 1, 8))
    results = [compare_paired(*sim.tolist()) for sim in arms]
    assert has_nominal_coverage(float(np.mean([f.low <= 0 <= f.high for f in results])), sims)
    p = np.array([f.p for f in results])
    for alpha in (0.02, 0.05, 0.2):
        assert (p <= alpha).mean() <= alpha + 4 * math.sqrt(alpha / sims)
    assert (p <= 0.2).mean() > 0.12  # exact, not merely careful


@pytest.mark.parametrize("n", [5, 8, 12])
def test_sign_flip_test_equals_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, n)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert sign_flip_test(values.tolist()) == pytest.approx(expected.pvalue)


def test_sign_flip_test_of_many_pairs_and_of_sums_that_differ_only_by_rounding() -> None:
    values = np.random.default_rng(9).normal(0.4, 1, 30)  # drawn flips, close to Student's test
    students = stats.ttest_1samp(values, 0).pvalue
    assert sign_flip_test(values.tolist()) == pytest.approx(students, abs=0.01)
    assert sign_flip_test([0.1, 0.2, 0.3]) == sign_flip_test([1, 2, 3]) == 0.25
    assert sign_flip_test([0.8, 0.1, 0.5]) == 0.25  # added one by one they fall short of their sum
    assert sign_flip_test([0.0, 0.0]) == 1.0


def test_holm_correction_decides_whether_an_effect_is_shown() -> None:
    clear = compare_differences([0.3, 0.31, 0.29, 0.33, 0.3, 0.28, 0.32, 0.31])
    assert clear.shown
    assert clear.p == 2 / 256
    alone, *_ = holm_correct([clear])
    assert alone.p_holm == clear.p
    many = holm_correct([clear] * 7)
    assert many[0].p_holm == pytest.approx(7 * 2 / 256)
    assert not many[0].shown  # the same effect among seven comparisons
    undefined = compare_differences([0.3])
    assert holm_correct([clear, undefined])[1].p_holm is None


# --- bases


def test_the_interval_and_test_are_students_over_base_means() -> None:
    rng = np.random.default_rng(0)
    bases = ["a", "a", "b", "b", "b", "c", "d", "d"]
    differences = rng.normal(0.2, 0.1, 8).tolist()
    result = compare_differences(differences, 1, bases)
    means = [
        np.mean([d for d, b in zip(differences, bases, strict=True) if b == x]) for x in "abcd"
    ]
    expected = stats.ttest_1samp(means, 0)
    interval = expected.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high), abs=1e-4)
    assert result.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert (result.n, result.num_bases, result.dropped) == (8, 4, 1)
    assert result.effect == pytest.approx(np.mean(means))


def test_a_balanced_design_gives_the_estimate_and_error_of_a_mixed_model() -> None:
    rng = np.random.default_rng(1)
    bases = np.repeat(list("abcdef"), 4)
    differences = np.repeat(rng.normal(0.3, 0.3, 6), 4) + rng.normal(0, 0.1, 24)
    result = compare_differences(differences.tolist(), bases=bases.tolist())
    frame = pandas.DataFrame({"one": 1.0}, index=range(24))
    model = MixedLM(differences, frame, groups=bases).fit(reml=True)
    assert result.effect == pytest.approx(model.fe_params["one"], abs=1e-6)
    half = stats.t.ppf(0.975, 5) * model.bse_fe["one"]
    assert result.high - result.effect == pytest.approx(half, rel=1e-3)
    interaction = estimate_interaction(differences.tolist(), bases.tolist())
    assert interaction.sd_between == pytest.approx(np.sqrt(model.cov_re.iloc[0, 0]), rel=1e-3)
    assert interaction.sd_within == pytest.approx(np.sqrt(model.scale), rel=1e-3)


def test_the_interaction_is_a_one_way_analysis_of_variance() -> None:
    rng = np.random.default_rng(2)
    groups = [rng.normal(mean, 0.1, n) for mean, n in ((0, 5), (0.2, 4), (0.1, 3))]
    expected = stats.f_oneway(*groups)
    bases = [name for name, group in zip("abc", groups, strict=True) for _ in group]
    result = estimate_interaction(np.concatenate(groups).tolist(), bases)
    assert result.f == pytest.approx(expected.statistic)
    assert result.p == pytest.approx(expected.pvalue)
    assert (result.df_between, result.df_within) == (2, 9)
    assert estimate_interaction([1.0, 2.0], ["a", "b"]).p is None  # one seed per base
    assert estimate_interaction([1.0, 2.0], ["a", "a"]).p is None  # one base
    assert estimate_interaction([1.0, 1.0, 2.0, 2.0], list("aabb")).p is None  # no noise


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 7), (90, 100), (1, 1000)])
def test_wilson_interval_equals_scipy(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    interval = wilson_interval(successes, trials)
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-15)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_mean_interval_over_seeds_is_students() -> None:
    values = [0.1, 0.4, 0.3, 0.35, 0.2]
    expected = stats.t.interval(0.95, 4, loc=0.27, scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((0.27, *expected), abs=1e-3)
    assert mean_interval([0.5]) == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize(("correct", "samples", "k"), [(0, 4, 2), (1, 4, 2), (3, 4, 2), (2, 5, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(
    correct: int, samples: int, k: int
) -> None:
    subsets = list(itertools.combinations([i < correct for i in range(samples)], k))
    assert pass_at_k(correct, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(
    "counts", [(56, 70, 48, 80), (9, 10, 3, 10), (0, 10, 0, 20), (10, 10, 0, 20)]
)
def test_newcombe_interval_equals_statsmodels(counts: tuple[int, int, int, int]) -> None:
    expected = confint_proportions_2indep(*counts, method="newcomb", compare="diff")
    assert newcombe_interval(*counts) == pytest.approx(expected, abs=1e-9)
    assert newcombe_interval(0, 0, 3, 4) == (-1.0, 1.0)


@pytest.mark.parametrize("p_values", [[0.01, 0.04, 0.03], [0.5], [0.2, 0.2, 0.9, 0.001], []])
def test_holm_adjust_equals_statsmodels(p_values: list[float]) -> None:
    expected = multipletests(p_values, method="holm")[1] if p_values else []
    assert holm_adjust(p_values) == list(expected)


def test_interval_of_samples_is_between_that_of_problems_and_that_of_all_samples() -> None:
    """Samples of a problem that always agree are one observation; independent ones are all of them."""
    agreeing = [1.0] * 30 + [0.0] * 70
    assert clustered_rate_interval(agreeing, 4) == pytest.approx(wilson_interval(30, 100), abs=2e-3)
    assert clustered_rate_interval([0.25] * 100, 4) == pytest.approx(wilson_interval(25, 100))
    assert clustered_rate_interval([0.0] * 20, 4) == wilson_interval(0, 20)
    assert clustered_rate_interval([], 4) == (0.0, 1.0)
    rng, covered = random.Random(1), 0
    for _ in range(400):  # problems differ, as they do in practice: 95 % of intervals cover
        rates = [rng.choice((0.1, 0.5, 0.9)) for _ in range(60)]
        shares = [sum(rng.random() < rate for _ in range(4)) / 4 for rate in rates]
        low, high = clustered_rate_interval(shares, 4)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.98
