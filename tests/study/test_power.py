"""Power: the smallest effect is that of the test which the analysis runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from tests.study import synthetic_study

from glasshouse.measurement.intervals import compare_over_bases, sign_flip_test
from glasshouse.study.power import describe_power, smallest_effect, smallest_margin


def test_eight_seeds_see_an_effect_of_1_2_deviations_and_fewer_than_six_see_nothing() -> None:
    alone = smallest_effect(8, 0.05, over_bases=False)
    assert alone == pytest.approx(1.2, abs=0.1)
    assert smallest_effect(8, 0.05, over_bases=False, must_exceed_null=True) > 1.2 * alone
    assert smallest_effect(5, 0.05, over_bases=False) is None
    assert smallest_effect(8, 0.05 / 7, over_bases=False) is None  # 2/2⁸ > 0.05/7
    assert smallest_effect(9, 0.05 / 7, over_bases=False) is not None


@pytest.mark.parametrize("over_bases", [False, True])
def test_the_analysis_finds_this_effect_in_four_of_five_studies(over_bases: bool) -> None:
    level, n = 0.05 / 3, 8
    effect = smallest_effect(n, level, over_bases)
    assert effect is not None
    draws = np.random.default_rng(5).normal(effect, 1, (300, n)).tolist()
    bases = [str(i) for i in range(n)]
    p_values = [compare_over_bases(d, bases).p if over_bases else sign_flip_test(d) for d in draws]
    assert np.mean([p <= level for p in p_values]) == pytest.approx(0.8, abs=0.07)


def test_the_margin_contains_the_interval_in_four_of_five_studies_without_effect() -> None:
    draws = np.random.default_rng(6).normal(0, 1, (2000, 8))
    margin = smallest_margin(8)
    interval = stats.ttest_1samp(draws, 0, axis=1).confidence_interval()
    within = (interval.low >= -margin) & (interval.high <= margin)
    assert within.mean() == pytest.approx(0.8, abs=0.03)


def test_the_sentence_names_the_test_the_units_and_the_number_of_questions() -> None:
    over_seeds = describe_power(synthetic_study.make_study())
    assert "sign-flip test over seeds, 8 seeds, Holm over 4 questions" in over_seeds
    assert all(part in over_seeds for part in ("a difference of", "beyond the null", "unchanged"))
    bases = [f"b{i}" for i in range(6)]
    over_bases = describe_power(synthetic_study.make_study(bases=bases, seeds=12))
    assert "t test over base means, 6 bases" in over_bases
    few = describe_power(synthetic_study.make_study(seeds=4))
    assert "cannot be shown with so few seeds" in few
    assert describe_power(synthetic_study.make_study(questions=[])) == ""
