"""Two arms over paired seeds, at one step or at equal accuracy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.measurement.simulated import has_nominal_coverage

from glasshouse.errors import MonitorError
from glasshouse.measurement.paired_seeds import (
    compare_differences,
    compare_paired,
    holm_correct,
    sign_flip_test,
)


def test_interval_over_paired_seeds_covers_and_sign_flip_test_is_exact() -> None:
    sims, rng = 600, np.random.default_rng(2)
    arms = rng.normal(0.3, 0.1, (sims, 2, 8)) + rng.normal(0, 0.2, (sims, 1, 8))
    results = [compare_paired(*sim.tolist()) for sim in arms]
    assert has_nominal_coverage(float(np.mean([f.low <= 0 <= f.high for f in results])), sims)
    p = np.array([f.p for f in results])
    for alpha in (0.02, 0.05, 0.2):
        assert (p <= alpha).mean() <= alpha + 4 * math.sqrt(alpha / sims)
    assert (p <= 0.2).mean() > 0.12  # exact, not merely careful


def test_comparison_of_three_worked_pairs() -> None:
    result = compare_paired([0.9, 0.8, 0.85, None], [0.5, 0.5, 0.6, 0.1])
    assert result.effect == pytest.approx(0.95 / 3)
    assert (result.p, result.smallest_p, result.n, result.dropped) == (0.25, 0.25, 3, 1)
    assert not result.shown
    assert "two" in compare_paired([1.0, None], [0.5, 0.5]).reason
    with pytest.raises(MonitorError, match="seeds"):
        compare_paired([1.0], [1.0, 2.0])


@pytest.mark.parametrize("n", [5, 8, 12])
def test_sign_flip_test_equals_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, n)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert sign_flip_test(values.tolist()) == pytest.approx(expected.pvalue)


def test_sampled_sign_flip_test_beyond_16_pairs_is_close_to_students() -> None:
    values = np.random.default_rng(9).normal(0.4, 1, 30)
    assert sign_flip_test(values.tolist()) == pytest.approx(
        stats.ttest_1samp(values, 0).pvalue, abs=0.01
    )


def test_sign_flip_test_counts_sums_that_differ_only_by_rounding() -> None:
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
