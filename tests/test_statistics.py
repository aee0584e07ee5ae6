"""Intervals against scipy and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import Table
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep

from glasshouse.statistics import (
    T95,
    cochran_armitage,
    holm,
    mcnemar,
    mean_interval,
    newcombe,
    pass_at_k,
    t95,
    wilson,
)


@pytest.mark.parametrize(("right", "of"), [(0, 10), (10, 10), (3, 7), (90, 100), (1, 1000)])
def test_wilson_equals_scipys(right: int, of: int) -> None:
    expected = stats.binomtest(right, of).proportion_ci(0.95, method="wilson")
    assert wilson(right, of) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_of_nothing_knows_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_t_table_is_students() -> None:
    assert pytest.approx(T95, abs=6e-4) == [stats.t.ppf(0.975, n) for n in range(1, 31)]


@pytest.mark.parametrize("freedom", [1, 30, 31, 40, 100, 10_000])
def test_t_beyond_the_table_is_students(freedom: int) -> None:
    assert t95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def test_a_mean_over_seeds_has_students_interval() -> None:
    values = [0.1, 0.4, 0.3, 0.35, 0.2]
    expected = stats.t.interval(0.95, 4, loc=0.27, scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((0.27, *expected), abs=1e-3)
    assert mean_interval([0.5]) == (0.5, -math.inf, math.inf)


@pytest.mark.parametrize(("right", "samples", "k"), [(0, 4, 2), (1, 4, 2), (3, 4, 2), (2, 5, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(
    right: int, samples: int, k: int
) -> None:
    subsets = list(itertools.combinations([i < right for i in range(samples)], k))
    assert pass_at_k(right, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(
    "counts", [(56, 70, 48, 80), (9, 10, 3, 10), (0, 10, 0, 20), (10, 10, 0, 20)]
)
def test_newcombe_equals_statsmodels(counts: tuple[int, int, int, int]) -> None:
    expected = confint_proportions_2indep(*counts, method="newcomb", compare="diff")
    assert newcombe(*counts) == pytest.approx(expected, abs=1e-9)


def test_newcombes_own_example_and_no_trials() -> None:
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert newcombe(0, 0, 3, 4) == (-1.0, 1.0)


@pytest.mark.parametrize("p", [[0.01, 0.04, 0.03], [0.5], [0.2, 0.2, 0.9, 0.001], []])
def test_holm_equals_statsmodels(p: list[float]) -> None:
    expected = multipletests(p, method="holm")[1] if p else []
    assert holm(p) == pytest.approx(list(expected))


@pytest.mark.parametrize(
    ("b", "c"), [(1, 8), (8, 1), (5, 5), (0, 0), (0, 6), (40, 65), (900, 1000)]
)
def test_mcnemar_equals_statsmodels(b: int, c: int) -> None:
    expected = statsmodels_mcnemar([[10, b], [c, 3]], exact=True).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-9)


def test_cochran_armitage_equals_statsmodels() -> None:
    successes, trials, doses = [3, 6, 9, 15], [20, 22, 20, 25], [0, 5, 10, 20]
    found = cochran_armitage(successes, trials, doses)
    table = np.array([successes, np.subtract(trials, successes)])
    expected = Table(table, shift_zeros=False).test_ordinal_association(
        row_scores=np.array([1, 0]), col_scores=np.array(doses)
    )
    assert found is not None
    n = sum(trials)  # statsmodels conditions on both margins: its variance has n − 1, not n
    assert found[0] == pytest.approx(expected.zscore * math.sqrt(n / (n - 1)))
    assert found[1] == pytest.approx(2 * stats.norm.sf(abs(found[0])))


def test_a_trend_needs_two_doses_and_a_rate_that_can_vary() -> None:
    assert cochran_armitage([0, 0], [5, 5], [0, 1]) is None
    assert cochran_armitage([5, 5], [5, 5], [0, 1]) is None
    assert cochran_armitage([2, 3], [5, 5], [4, 4]) is None
    assert cochran_armitage([], [], []) is None
