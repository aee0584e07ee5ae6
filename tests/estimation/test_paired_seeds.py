"""Two arms over paired seeds, at one step or at equal accuracy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.estimation.simulated import holds_its_rate

from glasshouse import estimation as i
from glasshouse.errors import MonitorError


def test_students_interval_over_paired_seeds_covers_and_the_sign_flip_test_is_exact() -> None:
    sims, rng = 600, np.random.default_rng(2)
    arms = rng.normal(0.3, 0.1, (sims, 2, 8)) + rng.normal(0, 0.2, (sims, 1, 8))
    found = [i.paired(*sim.tolist()) for sim in arms]
    assert holds_its_rate(float(np.mean([f.low <= 0 <= f.high for f in found])), sims)
    p = np.array([f.p for f in found])
    for alpha in (0.02, 0.05, 0.2):
        assert (p <= alpha).mean() <= alpha + 4 * math.sqrt(alpha / sims)
    assert (p <= 0.2).mean() > 0.12  # exact, not merely careful


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
