"""The table of a study: what is collected from a run, its canonical form and its comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.study.synthetic_study import make_row

from glasshouse.errors import GlasshouseError
from glasshouse.runs.monitor_results import VERSION
from glasshouse.study.table import Table, collect_rows, compare_tables, read_table_lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files of a run directory that the table is collected from; step 2 was evaluated twice."""
    results = tmp_path / "results"
    results.mkdir()
    organism = {"reliance": 0.25, "rollouts": 8, "disclosure_rule": {"disclosure": None}}
    first = {"event": "evaluation", "time": "now", "step": 0, "accuracy": 0.5, "accuracy_low": 0.1,
             "levels": {"a": {"accuracy": 1}}, "organism": organism}  # fmt: skip
    second = first | {"step": 2, "accuracy": 0.75}
    events = [{"event": "start"}, first, second | {"accuracy": 0.1}, second]
    (results / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    metrics = [
        {"step": s, "kl": s / 10, "reward": -1.0, "rule_none": 0, "accuracy": 9} for s in (1, 2)
    ]
    (results / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    uplift = {"uplift": {"value": 0.5, "n": 3, "low": 0, "high": 1}}
    monitored = {"version": VERSION, "settings": {}, "checkpoints": [
        {"name": "base", "step": 0, "measures": {"interventions": uplift}},
        {"name": "step-000002", "step": 2, "measures": {"monitors": {"x": {"value": None}}}}]}  # fmt: skip
    (results / "monitor.json").write_text(json.dumps(monitored))
    return tmp_path


def test_rows_come_from_evaluations_training_steps_and_monitoring(run: Path) -> None:
    rows = {(r.step, r.measure): r.value for r in collect_rows(run, "a", "b", 3)}
    assert rows == {
        (0, "accuracy"): 0.5, (0, "reliance"): 0.25, (0, "disclosure_rule.disclosure"): None,
        (0, "kl"): 0, (0, "interventions.uplift"): 0.5, (2, "accuracy"): 0.75, (2, "reliance"): 0.25,
        (2, "disclosure_rule.disclosure"): None, (2, "kl"): 0.2, (2, "reward"): -1,
        (2, "rule_none"): 0, (2, "monitors.x"): None,
    }  # fmt: skip


def test_partial_credit_is_in_the_rows_only_if_it_is_named(run: Path) -> None:
    """Tables from before these measures existed must stay the same."""
    events = run / "results" / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    credit = {"closeness": 0.5, "sampled_median_relative_error": 0.25}
    events.write_text("".join(json.dumps(line | credit) + "\n" for line in lines))
    plain = collect_rows(run, "a", "b", 3)
    named = collect_rows(run, "a", "b", 3, {"closeness", "accuracy"})
    assert {row.measure for row in named} - {row.measure for row in plain} == {"closeness"}
    assert {row.value for row in named if row.measure == "closeness"} == {0.5}


def test_a_table_is_sorted_and_survives_a_round_trip(tmp_path: Path) -> None:
    rows = [
        make_row("b", 0, 0, "x", 1),
        make_row("a", 10, 2, "x", None),
        make_row("a", 2, 2, "x", 0.1),
    ]
    Table(rows).save(tmp_path / "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text()
    assert text.splitlines()[0] == (
        '{"arm": "a", "base": "leaked-hint-0", "seed": 2, "step": 2, "measure": "x", "value": 0.1}'
    )
    loaded = Table.load(tmp_path / "t.jsonl")
    assert loaded.text() == text
    assert [row.seed for row in loaded] == [2, 10, 0]
    assert loaded.runs_of("a", "x") == {2: {2: 0.1}, 10: {2: None}}


def test_invalid_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GlasshouseError, match="two rows"):
        Table([make_row("a", 0, 0, "x", 1), make_row("a", 0, 0, "x", 2)])
    (tmp_path / "t.jsonl").write_text('{"arm": "a"}\n')
    with pytest.raises(GlasshouseError, match=r"t\.jsonl"):
        Table.load(tmp_path / "t.jsonl")
    (tmp_path / "bad.jsonl.zst").write_bytes(b"not a table")
    for name in ("none.jsonl", "bad.jsonl.zst"):
        with pytest.raises(GlasshouseError, match=name):
            Table.load(tmp_path / name)


def test_tables_are_compared_byte_by_byte_and_differing_rows_are_listed(tmp_path: Path) -> None:
    rows = [make_row("a", seed, 0, "x", 0.5) for seed in range(8)]
    file = tmp_path / "t.jsonl"
    Table(rows).save(file)
    lines = read_table_lines(file)
    identical, message = compare_tables(Table(rows), lines, "t")
    assert identical
    assert "8 rows" in message
    changed = Table([*rows[:-1], make_row("a", 7, 0, "x", 0.5000000001)])
    identical, message = compare_tables(changed, lines, "t")
    assert not identical
    assert "1 of 8 rows" in message
    assert '"value": 0.5000000001' in message
    identical, message = compare_tables(Table(rows[:3]), lines, "t")
    assert not identical
    assert "(no row)" in message
    assert compare_tables(Table(rows[:3]), lines, "t", only_these_runs=True)[0]
    file.write_text(file.read_text().replace('"seed": 1, ', '"seed":1,'))
    assert not compare_tables(Table(rows), read_table_lines(file), "t")[0]
