"""Reading: each filter, and damage that is reported with what could be read."""

from __future__ import annotations

import json
import os
import re
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.made import rollouts

from glasshouse.errors import RecordError, RunError
from glasshouse.store import Query, Reader, RolloutLog, read
from glasshouse.store.rollout_reader import lost_steps

STEPS = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    log = RolloutLog(folder)
    for step in range(1, STEPS + 1):
        log.append("validation", step, rollouts(step, split="validation/greedy"))
        log.append("train", step, rollouts(step))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


Check = Callable[[dict[str, Any]], bool]


@pytest.mark.parametrize(
    ("query", "check"),
    [
        (Query(), lambda r: True),
        (Query(kinds=("train",)), lambda r: r["kind"] == "train"),
        (Query(first=2, last=3), lambda r: 2 <= r["step"] <= 3),
        (Query(first=3), lambda r: r["step"] >= 3),
        (Query(split="validation/greedy"), lambda r: r["split"] == "validation/greedy"),
        (Query(task="multiplication"), lambda r: r["group"] == 1),
        (Query(key="3+1"), lambda r: r["step"] == 3 and r["group"] == 1),
        (Query(group=1), lambda r: r["group"] == 1),
        (Query(correct=True), lambda r: r["reward"] == 1),
        (Query(correct=False), lambda r: r["reward"] < 1),
        (Query(rule="last"), lambda r: r["rule"] == "last"),
        (Query(lowest=0.2, highest=0.9), lambda r: r["reward"] == 0.25),
        (Query(text="MAYBE 1"), lambda r: "Maybe 1" in r["completion"]),
        (Query(text="is 2 +"), lambda r: r["step"] == 2),
        (Query(pattern=re.compile(r"First (1|4), then 0")),
         lambda r: r["step"] in (1, 4) and r["group"] == 0 and r["correct"]),
        (Query(kinds=("train",), group=0, correct=True),
         lambda r: r["kind"] == "train" and r["group"] == 0 and r["correct"]),
    ],
)  # fmt: skip
def test_each_filter_gives_the_rows_it_names(whole: Path, query: Query, check: Check) -> None:
    everything = list(Reader(whole).rows())
    wanted = [row for row in everything if check(row)]
    assert list(Reader(whole).rows(query)) == wanted
    assert len(everything) == 8 * STEPS
    assert wanted
    assert (len(wanted) < len(everything)) == (query != Query())


def seen(folder: Path) -> tuple[set[tuple[str, int]], Reader]:
    """Frames that can be read, each whole, and the reader."""
    reader = Reader(folder)
    rows = [(r["kind"], r["step"]) for r in reader.rows()]
    assert all(rows.count(frame) == 4 for frame in rows)
    return set(rows), reader


ALL = {(kind, step) for kind in ("train", "validation") for step in range(1, STEPS + 1)}


@pytest.mark.parametrize("name", ["manifest.jsonl", "train.jsonl.zst", "validation.jsonl.zst"])
def test_a_file_cut_anywhere_is_reported_with_what_can_be_read(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for end in sorted({0, len(data) - 1, *range(0, len(data), 13)}):
        (folder / name).write_bytes(data[:end])
        frames, reader = seen(folder)
        assert reader.damage or reader.unfinished, end
        if name == "manifest.jsonl":  # a frame without a line can still be read
            assert len(frames) >= len(ALL) - 2
        else:
            kind = name.split(".")[0]
            assert frames >= {f for f in ALL if f[0] != kind}
            assert {d.step for d in reader.damage} == {s for _, s in ALL - frames}


@pytest.mark.parametrize("name", ["manifest.jsonl", "train.jsonl.zst", "validation.jsonl.zst"])
def test_a_flipped_bit_anywhere_is_reported_and_costs_at_most_its_frame(
    folder: Path, name: str
) -> None:
    data = (folder / name).read_bytes()
    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        (folder / name).write_bytes(damaged)
        frames, reader = seen(folder)
        assert reader.damage or reader.unfinished, at
        if name == "manifest.jsonl":  # the frame is found without its line, but for a torn last one
            assert len(frames) == len(ALL) - bool(reader.unfinished), at
        else:
            assert len(frames) == len(ALL) - 1, at
        if reader.damage:  # else the last line has lost its end, as if it were still being written
            with pytest.raises(RecordError, match="damaged"):
                list(read(folder))


@pytest.mark.parametrize("name", ["train.jsonl.zst", "validation.jsonl.zst"])
def test_a_missing_file_is_reported_with_the_others_rows(folder: Path, name: str) -> None:
    (folder / name).unlink()
    frames, reader = seen(folder)
    assert len(frames) == STEPS
    assert len(reader.damage) == STEPS
    assert f"{name} is missing (4 rows lost)" in str(reader.damage[0])


def test_without_a_manifest_all_frames_are_read_and_it_is_said(folder: Path) -> None:
    (folder / "manifest.jsonl").unlink()
    frames, reader = seen(folder)
    assert frames == ALL
    assert "does not promise" in str(reader.damage[0])


def test_a_strict_read_says_which_step_and_stops_there(folder: Path) -> None:
    path = folder / "train.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-5])
    rows = read(folder, "train")
    assert [next(rows)["step"] for _ in range(12)] == [1] * 4 + [2] * 4 + [3] * 4
    with pytest.raises(RecordError, match=r"damaged: train, step 4: .* ends 5 bytes too early"):
        next(rows)
    assert len(list(read(folder, "validation"))) == 16
    with pytest.raises(RunError, match="does not exist"):
        next(read(folder / "none"))


def test_steps_that_only_the_metrics_know_are_damage(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "results").mkdir(parents=True)
    assert list(lost_steps(run, Reader(folder))) == []
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, STEPS + 3)]
    (run / "results" / "metrics.jsonl").write_text("".join(lines[:STEPS]) + '{"st')
    assert list(lost_steps(run, Reader(folder))) == []
    (run / "results" / "metrics.jsonl").write_text("".join(lines))
    assert str(*lost_steps(run, Reader(folder))).startswith("train, step 5: 2 steps are in metrics")


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Whole steps, never damage, and more each time."""
    child = os.fork()
    if not child:
        try:
            log = RolloutLog(tmp_path)
            for step in range(1, 10**6):
                log.append("train", step, rollouts(step))
        finally:
            os._exit(1)
    try:
        counts = [0]
        while len(counts) < 25:
            reader = Reader(tmp_path)
            rows = [row["step"] for row in reader.rows()]
            assert not reader.damage, reader.damage
            assert rows == [step for step in range(1, len(rows) // 4 + 1) for _ in range(4)]
            if len(rows) > counts[-1]:
                counts.append(len(rows))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_memory_is_that_of_one_step(tmp_path: Path) -> None:
    log = RolloutLog(tmp_path)
    peaks = []
    for upto in (5, 50):
        for step in range(log.lines, upto):
            log.append("train", step, rollouts(step, groups=8, samples=8))
        tracemalloc.start()
        assert sum(1 for _ in Reader(tmp_path).rows()) == 64 * upto
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
