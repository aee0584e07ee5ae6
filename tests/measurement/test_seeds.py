"""Two arms over paired seeds and over bases: agreement with scipy and statsmodels, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
from scipy import stats
from statsmodels.regression.mixed_linear_model import MixedLM
from tests.measurement.simulated import has_nominal_coverage

from glasshouse.measurement.intervals import (
    compare_differences,
    compare_over_bases,
    compare_paired,
    estimate_interaction,
    holm_correct,
    mean_interval,
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
    result = compare_over_bases(differences, bases, dropped=1)
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
    result = compare_over_bases(differences.tolist(), bases.tolist())
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


@pytest.mark.parametrize("seeds_per_base", [(2,) * 6, (1, 2, 3, 4, 1, 2)])
def test_the_interval_covers_the_mean_of_all_bases_while_one_over_seeds_does_not(
    seeds_per_base: tuple[int, ...],
) -> None:
    """A small version of `python -m proofs.base_intervals`."""
    rng = np.random.default_rng(3)
    bases = [str(b) for b, n in enumerate(seeds_per_base) for _ in range(n)]
    index = np.repeat(np.arange(6), seeds_per_base)
    covered, covered_over_seeds, rejected = [], [], []
    for _ in range(1500):
        effects = 0.2 + rng.normal(0, 0.2, 6)
        differences = (effects[index] + rng.normal(0, 0.1, len(index))).tolist()
        result = compare_over_bases(differences, bases)
        covered.append(result.low <= 0.2 <= result.high)
        rejected.append(compare_over_bases([d - 0.2 for d in differences], bases).p <= 0.05)
        _, low, high = mean_interval(differences)
        covered_over_seeds.append(low <= 0.2 <= high)
    assert 0.93 <= np.mean(covered) <= 0.97
    assert 0.03 <= np.mean(rejected) <= 0.07
    assert np.mean(covered_over_seeds) < 0.9
