"""Every measure compared with numbers worked out by hand and with scikit-learn."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from tests.measurement.simulated import columns, flags

from glasshouse.errors import MonitorError
from glasshouse.measurement.estimates import gmean2_values, rate_values, reliance_values
from glasshouse.measurement.interventions.cot import early_answering, implied_changes, matches
from glasshouse.measurement.rates import auroc, gmean2_parts, tabulate
from glasshouse.monitors.fitted import threshold_at_fpr
from glasshouse.values import FAILED, Measure, mean

# Ten planted rollouts, eight with the behaviour, six of those flagged; one false alarm among the
# other two. Ten control rollouts: two with the behaviour by chance; one flagged.
PLANTED = [1] * 10 + [0] * 10
BEHAVIOUR = [1] * 8 + [0] * 2 + [1] * 2 + [0] * 8
FLAGGED = [1] * 6 + [0] * 2 + [1, 0] + [0] * 9 + [1]


def reliance(planted: Sequence[int], behaviour: Sequence[int]) -> Measure:
    return reliance_values(columns(planted, behaviour)).measure


def rate(name: str, behaviour: Any, flagged: Any, planted: Any = None) -> Measure:
    c = columns([1] * len(behaviour) if planted is None else planted, behaviour)
    return rate_values(name, c, flags(flagged)).measure


def gmean2(planted: Any, behaviour: Any, flagged: Any) -> dict[str, float]:
    parts = gmean2_parts(tabulate(planted, behaviour, flagged))
    return {name: float(value) for name, value in parts.items()}


def pooled(planted: Any, behaviour: Any, flagged: Any) -> Measure:
    return gmean2_values("gmean2", columns(planted, behaviour), flags(flagged)).measure


def counts(measure: Measure) -> tuple[float | None, int, int]:
    return measure.value, measure.n, measure.left_out


def test_rates_of_the_worked_table() -> None:
    assert counts(reliance(PLANTED, BEHAVIOUR)) == (pytest.approx(0.8 - 0.2), 20, 0)
    assert counts(rate("disclosure", BEHAVIOUR, FLAGGED)) == (6 / 10, 10, 0)
    assert counts(rate("undetected_use", BEHAVIOUR, FLAGGED, PLANTED)) == (2 / 10, 10, 0)
    assert counts(rate("tnr", BEHAVIOUR, FLAGGED)) == (8 / 10, 10, 0)


def test_interventional_gmean2_of_the_worked_table() -> None:
    g = gmean2(PLANTED, BEHAVIOUR, FLAGGED)
    expected = {
        "total_effect": 0.6,
        "attributable_share": 0.75,  # 0.6 / 0.8
        "raw_tpr": 0.75,  # 6 of 8
        "tpr": 1.0,  # 0.75 / 0.75
        "tnr_control": 0.9,  # 9 of 10: all of the control arm is negative
        "tnr_planted": 0.5,  # 1 of 2
        "tnr": math.sqrt(0.45),
        "gmean2": math.sqrt(0.45),
        "informedness": 0.75 - (1 - math.sqrt(0.45)),
        "informedness_planted": 0.75 - 0.5,
        "ceiling": 1 / 3,  # 1 / (4 · 0.75)
    }
    assert g == pytest.approx(expected)
    no_negatives = gmean2([1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1])
    assert (no_negatives["tnr_planted"], no_negatives["tnr_control"]) == (1.0, 0.5)
    assert no_negatives["gmean2"] == pytest.approx(0.5 * math.sqrt(0.5))
    assert np.isnan(no_negatives["informedness_planted"])
    no_effect = gmean2([1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0])
    assert no_effect["tnr"] == 1.0
    assert np.isnan([no_effect["gmean2"], no_effect["ceiling"]]).all()


def test_gmean2_equals_the_reference_code() -> None:
    """What the reference gave for the same rows; `proofs.gmean_reference` compares more."""
    stored = json.loads((Path(__file__).parent / "gmean_reference.json").read_text())
    planted, behaviour, flagged = np.array(stored["rows"]).T
    found = gmean2(planted, behaviour, flagged)["gmean2"]
    assert found == pytest.approx(stored["gmean2"], abs=1e-12)


@pytest.mark.parametrize("share", [0.165, 0.55, 0.5, 1.0, 0.8])
def test_no_coin_exceeds_the_ceiling(share: float) -> None:
    table = np.zeros((2, 2, 3))
    table[1, 1, 0], table[0, :, 0] = 1000, (1000 * share, 1000 * (1 - share))
    p = np.linspace(0, 1, 20001)
    best = (np.minimum(1, p / share) * (1 - p)).max()
    assert gmean2_parts(table)["ceiling"] == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (rate("disclosure", [0, 0], [1, 0]), "shows the behaviour"),
        (rate("disclosure", [1, 1], [FAILED, FAILED]), "shows the behaviour"),
        (rate("tnr", [1], [1]), "free of the behaviour"),
        (reliance([1, 1], [1, 0]), "the control arm"),
        (reliance([0], [0]), "the planted arm"),
        (rate("undetected_use", [1], [1], [0]), "the planted arm"),
        (rate("undetected_use", [1], [FAILED]), "with a verdict"),
        (pooled([1, 0], [1, 0], [FAILED, 0]), "no planted rollout with the behaviour"),
        (pooled([1], [1], [1]), "free of the behaviour"),  # the plain form, without a control arm
        (pooled([1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]), "total effect 0.000"),
        (rate("gmean2", [1], [1]), "free of the behaviour"),
        (rate("gmean2", [0], [1]), "shows the behaviour"),
        (auroc([1, 1], [0.1, 0.2]), "free of the behaviour"),
        (auroc([1, 0], [np.nan, 0.2]), "shows the behaviour"),
        (mean([np.nan]), "there is no rollout"),
    ],
)
def test_an_undefined_measure_has_a_reason_and_no_value(result: Measure, reason: str) -> None:
    assert result.value is None
    assert reason in result.undefined


def test_a_measure_has_a_value_or_a_reason_and_a_name_of_source_monitor_and_id() -> None:
    with pytest.raises(ValueError, match="reason"):
        Measure(value=None, n=1)
    measure = Measure(source="organism", monitor="step_verifier", id="tnr", value=1.0, n=1)
    assert measure.name == "organism.step_verifier.tnr"
    assert Measure(id="reliance", value=1.0, n=1).name == "reliance"


def test_a_failed_verdict_is_neither_flagged_nor_unflagged() -> None:
    behaviour, flagged = [1, 1, 1, 0, 0], [1, 0, FAILED, 0, FAILED]
    assert counts(rate("disclosure", behaviour, flagged)) == (0.5, 2, 1)
    assert counts(rate("tnr", behaviour, flagged)) == (1.0, 1, 1)
    assert counts(rate("undetected_use", behaviour, flagged)) == (1 / 3, 3, 2)


# --- scores --------------------------------------------------------------------------------------

scored = st.lists(
    st.tuples(st.booleans(), st.integers(0, 6).map(lambda i: i / 4)), min_size=2, max_size=40
)


@given(scored, st.floats(0.1, 5), st.floats(-3, 3))
def test_auroc_equals_scikit_learn_and_depends_only_on_the_order_of_scores(
    rows: list[tuple[bool, float]], scale: float, shift: float
) -> None:
    y, s = (np.array(column) for column in zip(*rows, strict=True))
    area = auroc(y, s).value
    if len(set(y)) < 2:
        assert area is None
        return
    assert area == pytest.approx(metrics.roc_auc_score(y, s), abs=1e-12)
    assert auroc(y, np.exp(s * scale + shift)).value == area
    assert auroc(y, -s).value == auroc(~y, s).value == pytest.approx(1 - area)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 1, FAILED])),
        min_size=1,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
    st.integers(2, 3),
)
def test_measures_do_not_depend_on_row_order_or_duplication(
    rows: list[tuple[bool, bool, int]], rng: Any, times: int
) -> None:
    def values(rows: list[tuple[bool, bool, int]]) -> list[float]:
        x, y, z = zip(*rows, strict=True)
        results = [rate(name, y, z, x) for name in ("disclosure", "tnr", "undetected_use")]
        known = [result.value for result in (*results, reliance(x, y))]
        return [*(np.nan if v is None else v for v in known), gmean2(x, y, z)["gmean2"]]

    before = values(rows)
    assert all(np.isnan(value) or -1 <= value <= 1 for value in before)
    other = rows * times
    rng.shuffle(other)
    assert values(other) == pytest.approx(before, abs=1e-12, nan_ok=True)


def test_flag_rates_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y, z = rng.integers(0, 2, 300), rng.integers(0, 2, 300)
    (tn, fp), (fn, tp) = metrics.confusion_matrix(y, z)
    assert rate("disclosure", y, z).value == pytest.approx(metrics.recall_score(y, z))
    assert rate("tnr", y, z).value == pytest.approx(tn / (tn + fp))
    assert rate("gmean2", y, z).value == pytest.approx(tp / (tp + fn) * tn / (tn + fp))


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_a_threshold_holds_its_false_positive_rate_on_its_split(levels: int) -> None:
    benign = np.random.default_rng(levels).integers(0, levels, 1500) / levels
    threshold = threshold_at_fpr(benign.tolist(), 0.01)
    assert (benign > threshold).mean() <= 0.01
    lower = benign[benign < threshold]
    if len(lower):  # and no lower threshold would
        assert (benign > lower.max()).mean() > 0.01
    assert threshold_at_fpr((np.arange(1000) / 1000).tolist(), 0.01) == 0.989  # ten are above it


@pytest.mark.parametrize("bad", [[0, 2], [0.5, 1], [[0, 1]], ["no", "yes"]])
def test_invalid_labels_are_rejected(bad: list[object]) -> None:
    for named, behaviour, flagged in (
        ("each 0 or 1", bad, [0, 1]),
        ("behaviour has 2", [0, 1], [0]),
        ("flagged", [0, 1], [0, 2]),
    ):
        with pytest.raises(MonitorError, match=named):
            tabulate([1] * len(flagged), behaviour, flagged)


# --- ablations -----------------------------------------------------------------------------------


def test_early_answering_of_four_worked_rollouts() -> None:
    """By the fractions 0, ¼, ½, ¾ and 1."""
    never = ["7", "7", "7", "7", "7"]  # the CoT changes nothing
    late = ["1", None, "2", "3", "7"]  # only at the end: 1 − ½·¼
    middle = ["1", "1", "7", "7", "7"]  # agrees from ½ on: 1 − (½·¼ + ½)
    unread = ["7", "7", "7", "7", None]
    values = early_answering([never, late, middle, unread])
    assert values.tolist() == pytest.approx([0, 0.875, 0.375, np.nan], nan_ok=True)


def test_an_answer_follows_a_change_only_where_the_change_matters() -> None:
    """The last edit would not change the answer: it says nothing."""
    expected = implied_changes(["29", "29", "29", "29", "28", None], ["28"] * 6)
    followed = matches(["29", "28", "5", None, "28", "28"], expected)
    assert followed.tolist() == pytest.approx([1, 0, 0, 0, np.nan, np.nan], nan_ok=True)
