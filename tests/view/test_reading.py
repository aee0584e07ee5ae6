"""Runs as they grow, are resumed, or are damaged; the index against a plain filter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.view.conftest import ADDRESS
from tests.view.example_runs import log_step, make_step, open_run, write_run

from glasshouse.runs.rollout_log import LOG, RolloutReader, scan_log
from glasshouse.runs.rows import RolloutFilter
from glasshouse.view.app import make_app
from glasshouse.view.library import Library, find_runs
from glasshouse.view.rollout_index import RolloutIndex, list_frames, parse_query
from glasshouse.view.run_reader import RunLocation, RunReader, read_overview
from glasshouse.view.text_monitors import make_text_monitors


def build_index(run: Path) -> RolloutIndex:
    reader = RunReader(RunLocation("run", run))
    reader.refresh()
    index = RolloutIndex(make_text_monitors(reader.config)[0])
    index.set_frames(list_frames(run, reader.monitor))
    for frame in index.missing():
        index.add(frame)
    while index.unscored:
        index.score()
    return index


def search(index: RolloutIndex, **query: str) -> Any:
    return index.search(parse_query({"limit": "200", **query}))


@pytest.fixture
def run(gallery: Path, tmp_path: Path) -> Path:
    shutil.copytree(gallery / "plain", tmp_path / "plain")
    return tmp_path / "plain"


def test_runs_are_found_and_links_do_not_lead_out(tmp_path: Path, gallery: Path) -> None:
    shutil.copytree(gallery / "plain", tmp_path / "served" / "a" / "b")
    shutil.copytree(gallery / "plain", tmp_path / "secret")
    (tmp_path / "served" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "served" / "experiment").mkdir()
    (tmp_path / "served" / "experiment" / "config.yaml").write_text("steps: 1\n")
    assert set(find_runs([tmp_path / "served"]).runs) == {"a/b"}
    twice = find_runs([tmp_path / "served" / "a", tmp_path / "served"])
    assert set(twice.runs) == {"b", "a/b"}


def test_a_growing_run(tmp_path: Path) -> None:
    with open_run(tmp_path / "live", steps=10, done=2) as directory:
        library = Library([tmp_path])
        opened = library.open_run("live")
        write_run(tmp_path / "later", steps=1)
        assert library.open_run("later").reader.step == 1  # no page looked for it before
        assert opened.reader.status == "running"
        index = opened.open_index(budget=10)
        assert index.count() == 4 + 2 * 16
        before = opened.reader.version
        log_step(directory, 3, make_step(3, 4, 4))
        assert opened.poll()
        assert opened.reader.version > before
        assert opened.reader.describe()["metrics"]["steps"] == [1, 2, 3]
        assert index.count() == 4 + 3 * 16
        with open(directory.results / "metrics.jsonl", "a") as file:
            file.write('{"step": 4, "reward"')  # half a line
        assert opened.reader.metrics.refresh()
        assert opened.reader.step == 3
    assert RunReader(RunLocation("live", tmp_path / "live")).refresh()
    assert read_overview(RunLocation("live", tmp_path / "live"))["status"] == "interrupted"


def test_a_resumed_run_that_lost_steps(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", steps=10, done=2) as directory:
        position = directory.get_position()
        for step in (3, 4):
            log_step(directory, step, make_step(step, 4, 4))
        opened = Library([tmp_path]).open_run("run")
        index = opened.open_index(budget=10)
        assert search(index, sort="-step")["rows"][0]["step"] == 4
        directory.truncate_to(position, 2)
        log_step(directory, 3, make_step(3, 4, 4, first=["another text"]))
        opened.poll()
        assert opened.reader.step == 3
        assert search(index, sort="-step")["rows"][0]["step"] == 3
        assert index.count() == 4 + 3 * 16
        assert search(index, text="another text")["matching"] == 1


def test_a_full_disk_is_named_and_the_index_continued(run: Path, tmp_path: Path) -> None:
    library = Library([run])
    opened = library.open_run("plain")
    index = opened.open_index(budget=0)
    (pages,) = index.database.execute("PRAGMA page_count").fetchone()
    index.database.execute(f"PRAGMA max_page_count = {pages + 1}")
    client = TestClient(make_app(library), base_url=ADDRESS)
    answer = client.get("/api/rollouts", params={"run": "plain"})
    assert "TMPDIR" in answer.json()["error"]
    indexed = index.count()
    index.database.execute("PRAGMA max_page_count = 100000")
    assert opened.open_index(budget=60) is index
    assert not index.missing()
    assert indexed < index.count() == 104
    opened.close()


def test_queries_agree_with_the_filter_of_the_rollout_log(run: Path, tmp_path: Path) -> None:
    def is_expected(row: dict[str, Any], options: dict[str, Any]) -> bool:
        columns = {name: options[name] for name in ("rule", "group") if name in options}
        filters = {name: value for name, value in options.items() if name not in columns}
        return RolloutFilter(**filters).matches(row) and columns.items() <= row.items()

    index = build_index(run)
    rows = list(RolloutReader(run).iter_rows())
    place = {(r["step"], r["split"], r["group"], r["sample"]): n for n, r in enumerate(rows)}
    cases: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({}, {}),
        ({"split": "validation", "first": "2"}, {"splits": ("validation",), "first_step": 2}),
        ({"correct": "no", "rule": "last"}, {"correct": False, "rule": "last"}),
        ({"min_reward": "-0.8", "max_reward": "0.5"}, {"min_reward": -0.8, "max_reward": 0.5}),
        ({"text": "[ANSWER] 2"}, {"text": "[answer] 2"}),
        ({"text": "WHAT IS"}, {"text": "what is"}),
        ({"text": "%"}, {"text": "%"}),
        ({"split": "validation/greedy", "group": "1"}, {"splits": ("validation/greedy",), "group": 1}),
    ]  # fmt: skip
    for query, options in cases:
        found = {
            place[(r["step"], r["split"], r["group"], r["sample"])]
            for r in search(index, **query)["rows"]
        }
        expected = {n for n, row in enumerate(rows) if is_expected(row, options)}
        first = options.get("first_step", 0)
        assert found == {n for n in expected if rows[n]["step"] >= first}, query
    index.close()


def test_pages_and_facets(run: Path, tmp_path: Path) -> None:
    index = build_index(run)
    everything = search(index)
    assert sum(everything["facets"]["correct"].values()) == everything["matching"] == 104
    half = search(index, min_reward="0.9", limit="3", sort="-step")
    assert half["matching"] == half["facets"]["correct"]["yes"]
    assert [row["step"] for row in half["rows"]] == [6, 6, 6]
    next_page = search(index, min_reward="0.9", offset="3", sort="-step")
    assert not {r["ref"] for r in half["rows"]} & {r["ref"] for r in next_page["rows"]}
    flagged, passed = (search(index, flagged=f"{n}step_verifier")["matching"] for n in ("", "!"))
    assert flagged + passed == everything["matching"]
    (whole,) = search(index, ref="train.1.1", full="1")["rows"]
    assert (len(whole["text"]), whole["characters"]) == (200_000, 1_000_000)
    assert len(search(index, ref="train.1.1")["rows"][0]["text"]) == 240
    index.close()


def test_damaged_runs_show_what_can_be_read(run: Path, tmp_path: Path) -> None:
    frame = scan_log(run / "results" / LOG).frames[3]
    data = bytearray(frame.file.read_bytes())
    data[frame.end - 9] ^= 1
    frame.file.write_bytes(data)
    metrics = run / "results" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step": 3', '"step": 33'))
    (run / "results" / "summary.json").write_text("{")
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "# changed\n")
    reader = RunReader(RunLocation("run", run))
    reader.refresh()
    description = reader.describe()
    assert description["metrics"]["steps"] == [1, 2, 4, 5, 6]
    assert {d["file"] for d in description["damage"]} == {
        "config.yaml", "results/metrics.jsonl", "results/summary.json",
    }  # fmt: skip
    index = build_index(run)
    (damage,) = search(index)["damage"]
    assert "16 rows lost" in damage
    assert index.count() == 4 + 5 * 16 + 4
    assert read_overview(RunLocation("run", run))["damage"]
    for name in (f"results/{LOG}", "results/events.jsonl", "config.yaml"):
        (run / name).unlink()
        (run / name).mkdir()  # not even a file
    reader.refresh()
    json.dumps(reader.describe(), allow_nan=False)
    read_overview(RunLocation("run", run))
    index.close()


def test_monitors_that_cannot_be_applied_are_named() -> None:
    known, nothing = make_text_monitors({"task": {"name": "sum_digits", "style": "cot"}})
    assert ([monitor.name for monitor in known], nothing) == (["step_verifier"], [])
    rules = {"good": {"patterns": ["x"]}, "bad": {"patterns": ["("]}, "worse": 7}
    config = {"task": {"name": "leaked_hint", "options": {"hint_rate": "often"}, "style": "cot"},
              "evaluate": {"monitors": rules}}  # fmt: skip
    monitors, problems = make_text_monitors(config)
    assert [monitor.name for monitor in monitors] == ["good"]
    for word in ("leaked_hint", "evaluate.monitors.bad", "evaluate.monitors.worse"):
        assert sum(word in problem for problem in problems) == 1, (word, problems)
    _, problems = make_text_monitors({"task": {"name": "mine"}, "imports": ["my_tasks"]})
    assert "imports" in problems[0]
