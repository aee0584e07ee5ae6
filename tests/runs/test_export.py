"""Parquet and JSON lines give the same rows as the reader."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.runs.example_rollouts import make_rollout, make_rollouts

from glasshouse.errors import RunError
from glasshouse.runs.export import export_rows
from glasshouse.runs.rollout_log import RolloutLog, RolloutReader
from glasshouse.runs.rows import decode_rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """Nine rows; step 1 has no tokens, and the last text has unusual characters."""
    folder = tmp_path_factory.mktemp("log")
    log = RolloutLog(folder / "log", tokens_every=2)
    for step in (1, 2):
        log.append(make_rollouts(step))
    odd = replace(
        make_rollout(2, 5, split="discarded"), text='a\u2028b "quoted", \x00 and\nlines 🙂'
    )
    log.append([odd])
    return list(RolloutReader(log.file).iter_rows())


def from_arrow(row: dict) -> dict:
    return {**row, "terms": dict(row["terms"]), "meta": json.loads(row["meta"])}


def test_parquet_equals_the_reader(rows: list[dict], tmp_path: Path) -> None:
    assert export_rows(iter(rows), tmp_path / "x.parquet") == 9
    table = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert [from_arrow(row) for row in table] == rows
    export_rows([{**rows[0], "text": "a\udc80b"}], tmp_path / "odd.parquet")  # a lone surrogate
    assert parquet.read_table(tmp_path / "odd.parquet")["text"].to_pylist() == ["a\\udc80b"]


def test_json_lines_equal_the_reader(rows: list[dict], tmp_path: Path) -> None:
    export_rows(iter(rows), tmp_path / "x.jsonl")
    assert decode_rows((tmp_path / "x.jsonl").read_bytes()) == rows


def test_export_overwrites_nothing_and_leaves_no_partial_file(
    rows: list[dict], tmp_path: Path
) -> None:
    (tmp_path / "x.jsonl").write_text("mine")
    with pytest.raises(RunError, match="already exists"):
        export_rows(rows, tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_text() == "mine"
    with pytest.raises(RunError, match=r"\.parquet or \.jsonl"):
        export_rows(rows, tmp_path / "x.xlsx")
    with pytest.raises(RunError, match="no folder"):
        export_rows(rows, tmp_path / "no" / "x.jsonl")

    def failing():
        yield rows[0]
        raise RuntimeError

    before = sorted(tmp_path.iterdir())
    for name in ("y.jsonl", "y.parquet"):
        with pytest.raises(RuntimeError):
            export_rows(failing(), tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before
    assert export_rows([], tmp_path / "z.jsonl") == 0
    assert not (tmp_path / "z.jsonl").exists()


def test_missing_library_names_the_extra_to_install(
    rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RunError, match=r"parquet file needs pyarrow.* pip install .*\[parquet\]"):
        export_rows(rows, tmp_path / "y.parquet")
