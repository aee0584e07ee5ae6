"""Intervals and nulls of means over rollouts: hand-computed values, and shared resamples."""

from __future__ import annotations

import numpy as np
import pytest

from glasshouse import randomness
from glasshouse.measurement.bootstrap import bootstrap, bootstrap_all, wilson_if_unanimous
from glasshouse.measurement.control_null import control_null
from glasshouse.measurement.weighted_statistics import mean_statistic


def test_control_null_by_hand() -> None:
    values, control = [1, 1, 1, 1, np.nan], [0, 0, 0, 1, 0]
    null = control_null(values, control, list("abcde"), key=("hand",), permutations=4000)
    assert null.mean == 0.25
    # three differences of one: all three signs must agree, with probability 1/4, half of it positive
    assert null.p == pytest.approx(1 / 8, abs=0.02)
    assert control_null([np.nan], [0], ["a"], key=("hand",)).p is None
    same = control_null([1, 0, 1, 0], [1, 0, 1, 0], list("abcd"), key=("hand",))
    assert same.p == 1


def test_equal_values_have_an_interval_with_positive_width() -> None:
    """Wilson's interval of 0 of 10 is 0 to 0.2775; the bootstrap's is 0 to 0."""
    values, problems = [0.0] * 10 + [np.nan], list("abcdefghijk")
    degenerate = bootstrap(mean_statistic(values), [problems], key=("k",), resamples=100)
    assert (degenerate.low, degenerate.high) == (0, 0)
    assert wilson_if_unanimous(values, degenerate).high == pytest.approx(0.2775, abs=1e-4)
    assert wilson_if_unanimous(values, degenerate).low == 0
    differences = wilson_if_unanimous(values, degenerate, differences=True)
    assert differences.low == pytest.approx(-0.2775, abs=1e-4)
    mixed = [0.0, 1.0] * 5
    interval = bootstrap(mean_statistic(mixed), [problems[:10]], key=("k",), resamples=100)
    assert wilson_if_unanimous(mixed, interval) == interval


def test_shared_resamples_give_the_same_intervals_as_separate_ones() -> None:
    values = [randomness.stream("rows", i).random() for i in range(30)]
    problems = [i // 2 for i in range(30)]
    shared = bootstrap_all(
        {"a": mean_statistic(values), "b": mean_statistic(values[::-1])},
        [problems],
        key=("k",),
        resamples=200,
    )
    assert shared["a"] == bootstrap(mean_statistic(values), [problems], key=("k",), resamples=200)
    assert shared["a"] != shared["b"]
