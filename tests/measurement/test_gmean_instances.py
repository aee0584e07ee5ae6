"""g-mean² per instance with cross-fit eligibility."""

import json
from pathlib import Path

import numpy as np
import pytest

from glasshouse.measurement.gmean import gmean2
from glasshouse.measurement.gmean_instances import gmean2_of_split, gmean2_per_instance, split_rows


def test_both_aggregations_equal_the_reference_code():
    """What the reference gave for the same rows and the same split; `proofs.gmean_reference` compares more."""
    stored = json.loads((Path(__file__).parent / "gmean_reference.json").read_text())
    problem, planted, behaviour, flagged, part = np.array(stored["rows"]).T
    is_selected = np.where(part == 2, np.nan, part)
    ours = gmean2_of_split(planted == 1, behaviour == 1, flagged, problem, is_selected)
    expected = [np.nan if value is None else value for value in stored["per_instance"]]
    np.testing.assert_allclose(ours.values, expected, rtol=0, atol=1e-12)
    pooled = gmean2(planted, behaviour, flagged).gmean2.value
    assert pooled == pytest.approx(stored["pooled"], abs=1e-12)


def test_problems_without_an_effect_are_not_averaged():
    """Ten problems with an effect that the monitor sees, ten with noise: the noise is not eligible."""
    rng = np.random.default_rng(0)
    problem = np.repeat(np.arange(20), 60)
    planted = np.tile([0, 1], 600)
    rate = np.where(problem < 10, 0.9 * planted, 0.5)
    behaviour = rng.random(1200) < rate
    flagged = (behaviour & (problem < 10)).astype(int)
    result = gmean2_per_instance(planted, behaviour, flagged, problem, key=("test",))
    eligible = np.flatnonzero(~np.isnan(result.values))
    assert set(range(10)) <= set(eligible.tolist())
    assert len(eligible) <= 12
    assert result.gmean2.value > 0.9
    assert result.gmean2.n == len(eligible)


def test_too_few_eligible_problems_are_undefined():
    planted = np.tile([0, 1], 20)
    result = gmean2_per_instance(planted, [0] * 40, [0] * 40, [0] * 40, key=("test",))
    assert result.gmean2.value is None
    assert "0 of 1 problems" in result.gmean2.undefined


def test_the_split_is_60_to_40_within_each_arm_of_each_problem():
    problem, planted = np.repeat([0, 1, 2], 20), np.tile([False, True], 30)
    parts = split_rows(problem, planted, ("test",))
    for number in range(3):
        for arm in (False, True):
            assert parts[(problem == number) & (planted == arm)].sum() == 6
    assert np.isnan(split_rows(np.array([0]), np.array([True]), ("test",))).all()
    assert (split_rows(problem, planted, ("other",)) != parts).any()
