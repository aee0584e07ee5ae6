"""SQL, Parquet, JSON lines and CSV say what the Python reader says."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from pyarrow import parquet
from tests.store.made import rollout, rollouts

from glasshouse.errors import RunError
from glasshouse.store import Reader, RolloutLog, export
from glasshouse.store.rollout_rows import decode


@pytest.fixture
def rows(tmp_path: Path) -> list[dict]:
    log = RolloutLog(tmp_path / "record", tokens_every=2)  # step 1 without its tokens
    for step in (1, 2):
        log.append("train", step, rollouts(step))
    odd = replace(rollout(2, 5), text='a\u2028b "quoted", \x00 and\nlines 🙂')
    log.append("replaced", 2, [odd])
    return list(Reader(tmp_path / "record").rows())


def as_python(row: dict) -> dict:
    return {**row, "parts": dict(row["parts"]), "meta": json.loads(row["meta"])}


def test_sql_equals_the_reader(rows: list[dict]) -> None:
    names, found = export.sql(rows, "select * from rollouts")
    assert [as_python(dict(zip(names, row, strict=True))) for row in found] == rows
    _, found = export.sql(
        iter(rows),  # read once, asked twice
        "select count(*), sum(a.reward), (select max(step) from rollouts) from rollouts a",
    )
    assert found == [(9, sum(r["reward"] for r in rows), 2)]
    assert export.sql(rows, "select parts['exact'] from rollouts limit 1")[1] == [
        (rows[0]["parts"]["exact"],)
    ]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select nothing from rollouts", "columns: kind, step"),
        ("select group from rollouts", 'needs quotes: "group"'),
        ("select * from elsewhere", "The table is rollouts"),
    ],
)
def test_a_query_that_cannot_be_answered_is_a_sentence(
    rows: list[dict], query: str, says: str
) -> None:
    with pytest.raises(RunError, match=says) as caught:
        export.sql(rows, query)
    assert "\n" not in str(caught.value)


def test_parquet_equals_the_reader(rows: list[dict], tmp_path: Path) -> None:
    assert export.export(iter(rows), tmp_path / "x.parquet") == 9
    listed = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert [as_python(row) for row in listed] == rows
    found = duckdb.sql(f"select count(*), sum(reward) from '{tmp_path / 'x.parquet'}'").fetchall()
    assert found == [(9, sum(r["reward"] for r in rows))]


def test_json_lines_and_csv_equal_the_reader(rows: list[dict], tmp_path: Path) -> None:
    export.export(iter(rows), tmp_path / "x.jsonl")
    assert decode((tmp_path / "x.jsonl").read_bytes()) == rows
    export.export(iter(rows), tmp_path / "x.csv")
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    texts = ("kind", "completion", "question", "rule")
    assert [[row[name] for name in texts] for row in read] == [[r[n] for n in texts] for r in rows]
    assert [float(row["reward"]) for row in read] == [r["reward"] for r in rows]
    assert [json.loads(row["tokens"] or "null") for row in read] == [r["tokens"] for r in rows]
    assert [json.loads(row["correct"]) for row in read] == [r["correct"] for r in rows]


def test_a_lone_surrogate_stands_in_a_table_as_its_escape(rows: list[dict]) -> None:
    odd = {**rows[0], "completion": "a\udc80b"}
    assert export.sql([odd], "select completion from rollouts")[1] == [("a\\udc80b",)]


def test_an_export_overwrites_nothing_and_leaves_nothing_half_done(
    rows: list[dict], tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text("mine")
    with pytest.raises(RunError, match="overwrites nothing"):
        export.export(rows, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "mine"
    with pytest.raises(RunError, match=r"\.parquet, \.jsonl or \.csv"):
        export.export(rows, tmp_path / "x.xlsx")
    with pytest.raises(RunError, match="no folder"):
        export.export(rows, tmp_path / "no" / "x.csv")

    def failing():
        yield rows[0]
        raise RuntimeError

    before = sorted(tmp_path.iterdir())
    for name in ("y.csv", "y.jsonl", "y.parquet"):
        with pytest.raises(RuntimeError):
            export.export(failing(), tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
    assert export.export([], tmp_path / "z.csv") == 0
    assert not (tmp_path / "z.csv").exists()


def test_without_duckdb_the_sentence_says_what_to_install(
    rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(RunError, match=r"--sql needs DuckDB .* pip install \"glasshouse\[sql\]\""):
        export.sql(rows, "select 1")
    assert export.export(rows, tmp_path / "x.jsonl") == 9
    assert export.export(rows, tmp_path / "x.parquet") == 9
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RunError, match=r"y\.parquet needs pyarrow"):
        export.export(rows, tmp_path / "y.parquet")
