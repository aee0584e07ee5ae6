"""Intervals against closed forms, and by simulation: they cover."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.estimation.simulated import gmean2, holds_its_rate, planted

from glasshouse import estimation as i
from glasshouse import measures as m
from glasshouse.estimation.bootstrap import Nest
from glasshouse.estimation.bootstrap import interval as expanded
from glasshouse.measures import FAILED, auroc, contingency, gmean
from glasshouse.measures.result import Floats
from glasshouse.statistics import newcombe, wilson


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
        (contingency.total_effect, lambda x, y, z: m.reliance(x, y)),
        (contingency.disclosure, lambda x, y, z: m.disclosure(y, z)),
        (contingency.true_negative_rate, lambda x, y, z: m.true_negative_rate(y, z)),
        (contingency.undetected, m.undetected_reliance),
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
        i.bootstrap(i.of_table(contingency.disclosure, x, y, z), [problem], key=key, resamples=200)
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


def test_the_expanded_percentiles_end_where_students_t_does() -> None:
    normal: Floats = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    found = expanded(normal, 8)
    assert found.high == pytest.approx(stats.t.ppf(0.975, 7) * math.sqrt(8 / 7), abs=0.01)


def _coverage(found: Sequence[i.Interval], truth: float) -> float:
    assert all(interval.low is not None for interval in found)
    return float(np.mean([interval.holds(truth) for interval in found]))


def test_cluster_intervals_cover_where_rows_of_a_problem_are_alike() -> None:
    """Disclosure of a monitor of known quality; resampling rows instead would not do."""
    sims, rng = 200, np.random.default_rng(11)
    options = {"problems": 60, "k": 4, "planted_rate": 0.6, "caught": 0.7, "between": 2.5}
    many = planted(rng, **{**options, "problems": 40_000})  # type: ignore[arg-type]
    truth = float(contingency.disclosure(contingency.tabulate(*many[:3])))
    clustered, naive = [], []
    for sim in range(sims):
        x, y, z, problem = planted(rng, **options)  # type: ignore[arg-type]
        statistic = i.of_table(contingency.disclosure, x, y, z)
        clustered.append(i.bootstrap(statistic, [problem], key=("cover", sim), resamples=400))
        if sim < 100:
            rows = [np.arange(len(x))]
            naive.append(i.bootstrap(statistic, rows, key=("naive", sim), resamples=200))
    assert holds_its_rate(_coverage(clustered, truth), sims)
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
    assert holds_its_rate(_coverage(products, truth), sims)
    assert holds_its_rate(_coverage(areas, area), sims)


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
    assert holds_its_rate(_coverage(covered, 0.5), sims)
    assert np.mean(plain) < 0.93


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
