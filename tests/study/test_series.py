"""Arms at equal accuracy: the value of a measure where another one passes a level."""

from __future__ import annotations

import numpy as np
import pytest

from glasshouse.measurement.paired_seeds import compare_paired
from glasshouse.study.series import group_series, interpolate_at, point_at_equal_accuracy
from glasshouse.study.table import StudyRow, Table


def test_value_where_another_measure_passes_a_level() -> None:
    xs, values = [0.2, 0.6, 0.4], [1.0, 0.5, None]
    assert interpolate_at(0.4, xs, values) == pytest.approx(0.75)  # the first passage
    assert interpolate_at(0.6, xs, values) == 0.5
    assert interpolate_at(0.7, xs, values) is None  # never passed
    assert interpolate_at(0.5, xs[1:], values[1:]) is None  # undefined on one side
    assert interpolate_at(0.4, [0.6, 0.2], [0.0, 1.0]) == pytest.approx(0.5)  # falling
    assert interpolate_at(0.4, [], []) is None


def test_matching_accuracy_removes_a_difference_that_is_only_accuracy() -> None:
    """The measure is 1 − accuracy in both arms; one arm learns more slowly."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(8):
        jitter = float(rng.normal(0, 0.02))
        for arm, pace in (("fast", 0.2), ("slow", 0.1)):
            for step in range(5):
                accuracy = 0.1 + pace * step + jitter
                for measure, value in (("accuracy", accuracy), ("m", 1 - accuracy)):
                    rows.append(StudyRow(arm, seed, step, measure, "base", value))
    series = group_series(Table(rows))
    last = [[run[4] for run in series.get(arm, "m").values()] for arm in ("slow", "fast")]
    assert compare_paired(*last).shown
    point = point_at_equal_accuracy(series, ["slow", "fast"])
    matched = [list(point.values_of(arm, "m").values()) for arm in ("slow", "fast")]
    comparison = compare_paired(*matched)
    assert comparison.n == 8
    assert comparison.effect == pytest.approx(0, abs=1e-12)
    assert point.mean_steps["slow"] == pytest.approx(2 * point.mean_steps["fast"])


def test_arms_without_a_common_accuracy_have_no_such_point() -> None:
    rows = [
        StudyRow(arm, 0, step, "accuracy", "base", accuracy + 0.1 * step)
        for arm, accuracy in (("low", 0.1), ("high", 0.8))
        for step in (0, 1)
    ]
    point = point_at_equal_accuracy(group_series(Table(rows)), ["low", "high"])
    assert "no accuracy is passed by every seed of low and high" in point.reason
    assert not point.values_of("low", "accuracy")
