"""A new measure is one entry: the reports that it names have it, with interval, and without torch."""

from __future__ import annotations

import subprocess
import sys
from types import MappingProxyType

import numpy as np
import pytest

from glasshouse.measurement import measure as measuring
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.measures import MeasureSpec
from glasshouse.measurement.registry import MEASURES

COLUMNS = Columns(
    problems=np.repeat(np.arange(20), 2),
    planted=np.tile([True, False], 20),
    behaviour=np.tile([True, False], 20),
    correct=np.tile([0.0, 1.0], 20),
    cot_characters=np.arange(40.0),
    reward=np.ones(40),
    has_cot=np.ones(40),
)
MONITOR = Scores(monitor="rule", flagged=np.tile([1, 0], 20), scores=np.tile([0.9, 0.1], 20))


def test_a_new_measure_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = MeasureSpec(
        id="long_cots", label="long CoTs", sentence="Share of CoTs of 20 characters or more.", lower=0.0,
        upper=1.0, stream="long CoTs", values=lambda c: c.mean(c.cot_characters >= 20), reports=("file",),
    )  # fmt: skip
    monkeypatch.setattr(measuring, "MEASURES", MappingProxyType({**MEASURES, "long_cots": longest}))
    measured = measuring.measure(COLUMNS, "file", key=("test",), resamples=100).measures[
        "long_cots"
    ]
    assert (measured.value, measured.n, measured.units) == (0.5, 40, 20)
    assert measured.low is not None
    assert measured.low < 0.5
    assert "long_cots" not in measuring.measure(COLUMNS, "training", resamples=0).measures


def test_what_cannot_be_computed_has_a_reason() -> None:
    unlabelled = Columns(
        problems=COLUMNS.problems, planted=np.ones(40, dtype=bool), behaviour=COLUMNS.behaviour,
        correct=np.full(40, np.nan), cot_characters=COLUMNS.cot_characters, reward=np.full(40, np.nan),
        has_cot=COLUMNS.has_cot, has_labels=False,
    )  # fmt: skip
    measures = measuring.measure(unlabelled, "file", [MONITOR], resamples=0).measures
    undefined = {name for name, measure in measures.items() if measure.value is None}
    assert undefined >= {"behaviour", "reliance", "reward", "rollout_accuracy", "rule.disclosure"}
    assert all(measures[name].undefined for name in undefined)
    assert measures["rule.flag_rate"].value == 0.5
    assert "rule.informedness" not in measures  # it needs two arms
    broken = Scores(monitor="rule", reason="it could not be fitted")
    measures = measuring.measure(COLUMNS, "fitted", [broken]).measures
    assert {m.undefined for m in measures.values()} == {"it could not be fitted"}


def test_values_without_resamples_are_those_with_resamples() -> None:
    quick = measuring.measure(COLUMNS, "organism", [MONITOR], resamples=0).measures
    whole = measuring.measure(COLUMNS, "organism", [MONITOR], key=("test",), resamples=50).measures
    assert {name: m.value for name, m in quick.items()} == {n: m.value for n, m in whole.items()}
    assert quick["reliance"].low is None
    assert whole["rule.auroc"].name == "rule.auroc"


def test_measures_of_given_rollouts_import_no_torch() -> None:
    modules = "file, monitor_run, evaluate, registry"
    code = (
        f"import sys; from glasshouse.measurement import {modules}; print('torch' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "False\n"
