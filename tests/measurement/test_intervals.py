"""Intervals compared with closed forms, and their coverage in simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.measurement.simulated import (
    contains,
    gmean2_of_table,
    has_nominal_coverage,
    simulate_rollouts,
)

from glasshouse.measurement import rates
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
from glasshouse.measurement.intervals import newcombe_interval, wilson_interval
from glasshouse.measurement.rates import auroc_statistic, mean_statistic, table_statistic
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.resampling import (
    Interval,
    bootstrap,
    control_null,
    draw_weights,
    expanded_percentile_interval,
)
from glasshouse.values import FAILED, Floats, Measure


def measured(values: Values, resamples: int = 200) -> Measure:
    return estimate(values, lookup("test"), key=("agree",), resamples=resamples)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 1, FAILED])),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 3),
)
def test_a_weight_of_w_is_w_rows(rows: list[tuple[bool, bool, int]], w: int) -> None:
    """Weights of one give the measure itself; it is undefined in the same places."""
    weights = np.ones((2, len(rows)))
    weights[1, 0] = w
    repeated = [rows[0]] * w + rows[1:]
    columns, again = ([list(column) for column in zip(*r, strict=True)] for r in (rows, repeated))
    for read in (
        *(rate.statistic for rate in RATES.values()),
        rates.total_effect,
        gmean2_of_table,
    ):
        expected = [float(read(rates.tabulate(*(c or [[], [], []])))) for c in (columns, again)]
        found = table_statistic(read, *columns)(weights)
        assert found.tolist() == pytest.approx(expected, nan_ok=True, abs=1e-12)


def test_a_resample_draws_whole_units_and_as_many_as_exist() -> None:
    problem = np.array([5, 5, 2, 2, 2, 9])
    unit = np.unique(problem, return_inverse=True)[1]
    weights = next(draw_weights(unit, 50, ("test",)))
    for row in weights:
        drawn = [row[0], row[2], row[5]]
        assert row.tolist() == [drawn[0]] * 2 + [drawn[1]] * 3 + [drawn[2]]
        assert sum(drawn) == 3


def test_bootstrap_of_a_mean_agrees_with_students_t() -> None:
    values = np.random.default_rng(3).normal(0, 1, 200)
    found = bootstrap(mean_statistic(values), np.arange(200), key=("t",), resamples=8000)
    expected = stats.t.interval(0.95, 199, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, abs=0.012)
    assert found.units == 200


def test_bootstrap_is_a_function_of_its_key() -> None:
    x, y, z, problem = simulate_rollouts(np.random.default_rng(0))
    first, again, other = (
        bootstrap(table_statistic(rates.disclosure, x, y, z), problem, key=key, resamples=200)
        for key in (("a", 1), ("a", 1), ("b", 1))
    )
    assert first == again != other


def test_interval_is_undefined_if_the_measure_often_is() -> None:
    y = np.array([1] + [0] * 19)  # one positive: a third of the resamples has none
    found = bootstrap(auroc_statistic(y, np.arange(20.0)), np.arange(20), key=("few",))
    assert found.low is None
    assert "undefined in" in found.reason
    alone = bootstrap(mean_statistic([1.0, 2.0]), np.array([7, 7]), key=("one",))
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
        statistic = table_statistic(rates.disclosure, x, y, z)
        clustered.append(bootstrap(statistic, problem, key=("cover", sim), resamples=200))
        if sim < 100:
            rows = np.arange(len(x))
            naive.append(bootstrap(statistic, rows, key=("naive", sim), resamples=200))
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
        read = table_statistic(gmean2_of_table, x, y, z)
        products.append(bootstrap(read, problem, key=("g", sim), resamples=200))
        areas.append(
            bootstrap(auroc_statistic(positive, scores), problem, key=("a", sim), resamples=200)
        )
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
    rates = {name: measured(rate_values(name, x, y, z, problem)) for name in RATES}
    assert rates["disclosure"].low == pytest.approx(low_of_twenty)
    assert rates["tnr"].low == pytest.approx(low_of_twenty)
    assert rates["undetected_use"].high == pytest.approx(1 - low_of_twenty)
    assert rates["gmean2"].low == pytest.approx(low_of_twenty**2)
    assert rates["gmean2"].ceiling == 0.25
    mean = measured(mean_values(y[x == 1], problem[x == 1]))
    assert mean.low == pytest.approx(low_of_twenty)
    assert measured(auroc_values(y, z, problem)).low == pytest.approx(low_of_twenty)
    blind = measured(auroc_values(y, np.zeros(80), problem))
    assert (blind.low, blind.high) == pytest.approx((low_of_twenty / 2, 1 - low_of_twenty / 2))
    reliance = measured(reliance_values(x, y, problem))
    assert reliance.low == pytest.approx(newcombe_interval(20, 20, 0, 20)[0])
    assert reliance.informative
    both = measured(gmean2_values("gmean2", x, y, z, problem))
    assert both.low is not None
    assert both.low < 0.75 < 1 == both.high
    informedness = measured(gmean2_values("informedness", x, y, z, problem))
    assert informedness.low is not None
    assert informedness.low < 0.75


def test_fallback_trials_are_problems_not_rows() -> None:
    """Forty uses of three problems are not forty trials."""
    problem = np.concatenate([np.repeat([0, 1, 2], 14), np.arange(3, 60)])
    y = np.array([1] * 42 + [0] * 57)
    disclosure = measured(rate_values("disclosure", np.ones(99), y, y, problem))
    assert disclosure.low == pytest.approx(wilson_interval(3, 3)[0])


def test_equal_differences_have_an_interval_on_both_sides() -> None:
    """Wilson's interval of 0 of 10 is 0 to 0.2775."""
    values, problems = [0.0] * 10 + [np.nan], list("abcdefghijk")
    same = measured(mean_values(values, problems))
    assert (same.low, same.high) == (0, pytest.approx(0.2775, abs=1e-4))
    same = measured(mean_values(values, problems, is_difference=True))
    assert same.low == pytest.approx(-0.2775, abs=1e-4)


def test_control_null_by_hand() -> None:
    values, control = [1, 1, 1, 1, np.nan], [0, 0, 0, 1, 0]
    null = control_null(values, control, list("abcde"), key=("hand",), permutations=4000)
    assert null.mean == 0.25
    # three differences of one: all three signs must agree, with probability 1/4, half of it positive
    assert null.p == pytest.approx(1 / 8, abs=0.02)
    assert control_null([np.nan], [0], ["a"], key=("hand",)).p is None
    same = control_null([1, 0, 1, 0], [1, 0, 1, 0], list("abcd"), key=("hand",))
    assert same.p == 1
