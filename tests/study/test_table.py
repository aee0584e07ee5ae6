"""The table: what is taken of a run, in one order, in one way of writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glasshouse.errors import RecordError
from glasshouse.study.table import Row, Table, rows_of
from glasshouse.study.table_check import compare, read


def row(arm: str, seed: int, step: int, measure: str, value: float | None) -> Row:
    return Row(arm=arm, seed=seed, step=step, measure=measure, base="b", value=value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory as far as the table reads it; step 2 was evaluated twice."""
    results = tmp_path / "results"
    results.mkdir()
    organism = {"reliance": 0.25, "rollouts": 8, "discloses": {"disclosure": None}}
    first = {"event": "evaluation", "time": "now", "step": 0, "accuracy": 0.5, "accuracy_low": 0.1,
             "levels": {"a": {"accuracy": 1}}, "organism": organism}  # fmt: skip
    second = first | {"step": 2, "accuracy": 0.75}
    events = [{"event": "start"}, first, second | {"accuracy": 0.1}, second]
    (results / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    trained = [
        {"step": s, "kl": s / 10, "reward": -1.0, "rule_none": 0, "accuracy": 9} for s in (1, 2)
    ]
    (results / "metrics.jsonl").write_text("".join(json.dumps(t) + "\n" for t in trained))
    uplift = {"uplift": {"measure": {"value": 0.5, "n": 3}, "interval": [0, 1]}}
    found = {"version": 1, "settings": {}, "subjects": [
        {"name": "base", "step": 0, "measures": {"interventions": uplift}},
        {"name": "step-000002", "step": 2, "measures": {"monitors": {"x": {"value": None}}}}]}  # fmt: skip
    (results / "monitor.json").write_text(json.dumps(found))
    return tmp_path


def test_what_a_run_measured_is_taken_from_evaluations_training_and_monitoring(run: Path) -> None:
    found = {(r.step, r.measure): r.value for r in rows_of(run, "a", "b", 3)}
    assert found == {
        (0, "accuracy"): 0.5, (0, "reliance"): 0.25, (0, "discloses.disclosure"): None, (0, "kl"): 0,
        (0, "interventions.uplift"): 0.5, (2, "accuracy"): 0.75, (2, "reliance"): 0.25,
        (2, "discloses.disclosure"): None, (2, "kl"): 0.2, (2, "reward"): -1, (2, "rule_none"): 0,
        (2, "monitors.x"): None,
    }  # fmt: skip


def test_it_is_sorted_and_read_as_it_was_written(tmp_path: Path) -> None:
    table = Table([row("b", 0, 0, "x", 1), row("a", 10, 2, "x", None), row("a", 2, 2, "x", 0.1)])
    table.write(tmp_path / "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text()
    assert text.splitlines()[0] == (
        '{"arm": "a", "base": "b", "seed": 2, "step": 2, "measure": "x", "value": 0.1}'
    )
    again = Table.read(tmp_path / "t.jsonl")
    assert again == table
    assert again.text() == text
    assert [r.seed for r in again] == [2, 10, 0]
    assert again.value("a", 10, 2, "x") is None
    assert again.curve("a", 2, "x") == {2: 0.1}


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="two rows of the same"):
        Table([row("a", 0, 0, "x", 1), row("a", 0, 0, "x", 2)])
    (tmp_path / "t.jsonl").write_text('{"arm": "a"}\n')
    with pytest.raises(RecordError, match="not a study's table"):
        Table.read(tmp_path / "t.jsonl")
    with pytest.raises(RecordError, match="There is no table"):
        Table.read(tmp_path / "none.jsonl")


def test_a_comparison_is_bytewise_and_names_the_rows_that_differ(tmp_path: Path) -> None:
    rows = [row("a", seed, 0, "x", 0.5) for seed in range(8)]
    file = tmp_path / "t.jsonl"
    Table(rows).write(file)
    assert compare(Table(rows), read(file), "t") == (True, "identical: 8 rows, bytewise those of t")
    same, sentence = compare(
        Table([*rows[:-1], row("a", 7, 0, "x", 0.5000000001)]), read(file), "t"
    )
    assert not same
    assert "1 of 8 rows" in sentence
    assert '"value": 0.5000000001' in sentence
    same, sentence = compare(Table(rows[:3]), read(file), "t")
    assert not same
    assert "(no row)" in sentence
    assert compare(Table(rows[:3]), read(file), "t", part=True)[0]
    file.write_text(file.read_text().replace('"seed": 1, ', '"seed":1,'))
    assert not compare(Table(rows), read(file), "t")[0]
