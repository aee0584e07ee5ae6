"""Intervals against scipy and by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from scipy import stats

from glasshouse.statistics import T95, mean_interval, pass_at_k, wilson


@pytest.mark.parametrize(("right", "of"), [(0, 10), (10, 10), (3, 7), (90, 100), (1, 1000)])
def test_wilson_equals_scipys(right: int, of: int) -> None:
    expected = stats.binomtest(right, of).proportion_ci(0.95, method="wilson")
    assert wilson(right, of) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilson_of_nothing_knows_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_t_table_is_students() -> None:
    assert pytest.approx(T95, abs=6e-4) == [stats.t.ppf(0.975, n) for n in range(1, 31)]


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
