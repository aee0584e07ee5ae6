"""The registry resolves every measure id, and a new measure is one entry."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from glasshouse.measurement import measure as measuring
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.registry import (
    MEASURES,
    MeasureSpec,
    headline_accuracy,
    lookup,
    owner_of,
)
from glasshouse.study.table import Table

REPOSITORY = Path(__file__).parents[2]
TABLES = sorted(
    path
    for pattern in ("studies/*/table.jsonl.zst", "training/*/results/table.jsonl.zst")
    for path in REPOSITORY.glob(pattern)
)


@pytest.mark.parametrize(
    ("measure", "label"),
    [
        ("step_verifier.undetected_use", "undetected use, step verifier"),
        ("organism.disclosure_rule.auroc", "AUROC, disclosure rule"),
        ("organism.ngrams_base.cot_answer.tpr", "TPR, n-grams base (cot+answer)"),
        ("interventions.necessity_uplift", "necessity uplift"),
        ("my monitor.disclosure", "disclosure, my monitor"),
        ("pass_at_4", "pass@4"),
    ],
)
def test_lookup_puts_the_monitor_into_the_label(measure: str, label: str) -> None:
    spec = lookup(measure)
    assert (spec.id, spec.label, spec.bounds) == (measure, label, (0.0, 1.0))


def test_an_unknown_measure_gets_a_neutral_spec() -> None:
    spec = lookup("my.metric")
    assert (spec.id, spec.label) == ("my.metric", "my.metric")
    assert (spec.bounds, spec.direction) == (None, "none")


def test_owner_is_the_monitor_of_a_measure() -> None:
    assert owner_of("organism.disclosure_rule.gmean2") == "disclosure rule"
    assert owner_of("organism.reliance") == owner_of("reliance") == ""


def test_greedy_accuracy_is_stated_first_only_without_samples() -> None:
    assert headline_accuracy({"accuracy": 0.1, "pass_at_1": 0.2}) == "pass_at_1"
    assert headline_accuracy({"accuracy": 0.1}) == "accuracy"


def test_specs_are_complete() -> None:
    assert all(name == spec.id for name, spec in MEASURES.items())
    assert all(spec.label and spec.sentence.endswith(".") for spec in MEASURES.values())
    # an entry without a function or a column is never computed from rollouts
    assert all(
        bool(spec.reports) == bool(spec.values or spec.monitor_values) for spec in MEASURES.values()
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.parts[-3] + "/" + path.parts[-2])
def test_every_published_measure_is_registered(table: Path) -> None:
    measures = {row.measure for row in Table.load(table)}
    assert [measure for measure in measures if not lookup(measure).sentence] == []


# --- entries

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
        id="long_cots", label="long CoTs", sentence="Share of CoTs of 20 characters or more.",
        bounds=(0.0, 1.0), values=lambda c: c.mean(c.cot_characters >= 20), reports=("file",),
    )  # fmt: skip
    monkeypatch.setattr(measuring, "MEASURES", MappingProxyType({**MEASURES, "long_cots": longest}))
    measured = measuring.measure(COLUMNS, "file", key=("test",), resamples=100).measures[
        "long_cots"
    ]
    assert (measured.value, measured.n, measured.units) == (0.5, 40, 20)
    assert measured.low is not None
    assert measured.low < 0.5
    assert "long_cots" not in measuring.measure(COLUMNS, "training", resamples=0).measures


def test_values_without_resamples_are_those_with_resamples() -> None:
    quick = measuring.measure(COLUMNS, "organism", [MONITOR], resamples=0).measures
    whole = measuring.measure(COLUMNS, "organism", [MONITOR], key=("test",), resamples=50).measures
    assert {name: m.value for name, m in quick.items()} == {n: m.value for n, m in whole.items()}
    assert quick["reliance"].low is None
    assert whole["rule.auroc"].name == "rule.auroc"
