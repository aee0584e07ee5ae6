"""Closed-form intervals and tests, compared with scipy, statsmodels and brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep

from glasshouse.measurement.closed_forms import (
    T_TABLE_975,
    holm_adjust,
    mean_interval,
    newcombe_interval,
    pass_at_k,
    t_quantile_975,
    wilson_interval,
)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 7), (90, 100), (1, 1000)])
def test_wilson_interval_equals_scipy(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert wilson_interval(successes, trials) == pytest.approx(
        (expected.low, expected.high), abs=1e-15
    )


def test_wilson_interval_without_trials_is_zero_to_one() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_t_table_equals_scipy_to_three_digits() -> None:
    assert pytest.approx(T_TABLE_975, abs=6e-4) == [stats.t.ppf(0.975, n) for n in range(1, 31)]


@pytest.mark.parametrize("freedom", [1, 30, 31, 40, 100, 10_000])
def test_t_quantile_beyond_the_table_equals_scipy(freedom: int) -> None:
    assert t_quantile_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


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


def test_newcombe_interval_of_the_published_example_and_without_trials() -> None:
    assert newcombe_interval(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert newcombe_interval(0, 0, 3, 4) == (-1.0, 1.0)


@pytest.mark.parametrize("p_values", [[0.01, 0.04, 0.03], [0.5], [0.2, 0.2, 0.9, 0.001], []])
def test_holm_adjust_equals_statsmodels(p_values: list[float]) -> None:
    expected = multipletests(p_values, method="holm")[1] if p_values else []
    assert holm_adjust(p_values) == list(expected)
