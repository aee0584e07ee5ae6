"""The rollout log's reader: filters, and damage that is reported with what can still be read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.example_rollouts import make_rollouts

from glasshouse.errors import RunDataError, RunError
from glasshouse.runs.manifest import kind_of
from glasshouse.runs.rollout_log import RolloutLog
from glasshouse.runs.rollout_reader import (
    RolloutFilter,
    RolloutReader,
    find_missing_steps,
    read_rows,
)

STEPS = 4
ALL_FRAMES = {(kind, step) for kind in ("train", "validation") for step in range(1, STEPS + 1)}


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps with a train and a validation frame each, of 2 groups of 2 samples."""
    folder = tmp_path_factory.mktemp("log")
    log = RolloutLog(folder)
    for step in range(1, STEPS + 1):
        log.append(make_rollouts(step, split="validation/greedy"))
        log.append(make_rollouts(step))
    return folder


@pytest.fixture
def folder(shared_log: Path, tmp_path: Path) -> Path:
    """A copy of the log, to damage."""
    return shutil.copytree(shared_log, tmp_path / "log")


@pytest.mark.parametrize(
    ("rollout_filter", "matches"),
    [
        (RolloutFilter(), lambda r: True),
        (RolloutFilter(splits=("train",)), lambda r: kind_of(r["split"]) == "train"),
        (RolloutFilter(first_step=2, last_step=3), lambda r: 2 <= r["step"] <= 3),
        (RolloutFilter(first_step=3), lambda r: r["step"] >= 3),
        (RolloutFilter(splits=("validation/greedy",)), lambda r: r["split"] == "validation/greedy"),
        (RolloutFilter(task="multiplication"), lambda r: r["group"] == 1),
        (RolloutFilter(key="3+1"), lambda r: r["step"] == 3 and r["group"] == 1),
        (RolloutFilter(group=1), lambda r: r["group"] == 1),
        (RolloutFilter(correct=True), lambda r: r["reward"] == 1),
        (RolloutFilter(correct=False), lambda r: r["reward"] < 1),
        (RolloutFilter(rule="last"), lambda r: r["rule"] == "last"),
        (RolloutFilter(min_reward=0.2, max_reward=0.9), lambda r: r["reward"] == 0.25),
        (RolloutFilter(text="MAYBE 1"), lambda r: "Maybe 1" in r["text"]),
        (RolloutFilter(text="is 2 +"), lambda r: r["step"] == 2),
        (RolloutFilter(pattern=re.compile(r"First (1|4), then 0")),
         lambda r: r["step"] in (1, 4) and r["group"] == 0 and r["correct"]),
        (RolloutFilter(splits=("train",), group=0, correct=True),
         lambda r: kind_of(r["split"]) == "train" and r["group"] == 0 and r["correct"]),
    ],
)  # fmt: skip
def test_each_filter_selects_exactly_the_matching_rows(
    shared_log: Path, rollout_filter: RolloutFilter, matches: Callable[[dict[str, Any]], bool]
) -> None:
    all_rows = list(RolloutReader(shared_log).iter_rows())
    expected = [row for row in all_rows if matches(row)]
    assert list(RolloutReader(shared_log).iter_rows(rollout_filter)) == expected
    assert len(all_rows) == 8 * STEPS
    assert expected
    assert (len(expected) < len(all_rows)) == (rollout_filter != RolloutFilter())


def read_frames(folder: Path) -> tuple[set[tuple[str, int]], RolloutReader]:
    """The frames that can be read, each with all its rows, and the reader."""
    reader = RolloutReader(folder)
    rows = [(kind_of(r["split"]), r["step"]) for r in reader.iter_rows()]
    assert all(rows.count(frame) == 4 for frame in set(rows))
    return set(rows), reader


@pytest.mark.parametrize("name", ["manifest.jsonl", "train.jsonl.zst", "validation.jsonl.zst"])
def test_file_truncated_at_any_byte_is_reported(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for end in sorted({0, len(data) - 1, *range(0, len(data), 37)}):
        (folder / name).write_bytes(data[:end])
        frames, reader = read_frames(folder)
        assert reader.damage or reader.unfinished, end
        if name == "manifest.jsonl":  # a frame without a line can still be read
            assert len(frames) >= len(ALL_FRAMES) - 2
        else:
            kind = name.split(".")[0]
            assert frames >= {f for f in ALL_FRAMES if f[0] != kind}
            assert {d.step for d in reader.damage} == {s for _, s in ALL_FRAMES - frames}


@pytest.mark.parametrize("name", ["manifest.jsonl", "train.jsonl.zst", "validation.jsonl.zst"])
def test_flipped_bit_anywhere_is_reported_and_loses_at_most_its_frame(
    folder: Path, name: str
) -> None:
    data = (folder / name).read_bytes()
    for position in range(0, len(data), 29):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        (folder / name).write_bytes(damaged)
        frames, reader = read_frames(folder)
        assert reader.damage or reader.unfinished, position
        if name == "manifest.jsonl":  # the frame is read without its line, unless it is the last
            assert len(frames) == len(ALL_FRAMES) - bool(reader.unfinished), position
        else:
            assert len(frames) == len(ALL_FRAMES) - 1, position
        if reader.damage:  # else the last line lost its end, as if it were still being written
            with pytest.raises(RunDataError, match="damaged"):
                list(read_rows(folder))


@pytest.mark.parametrize("name", ["train.jsonl.zst", "validation.jsonl.zst"])
def test_missing_file_is_reported_and_the_other_one_read(folder: Path, name: str) -> None:
    (folder / name).unlink()
    frames, reader = read_frames(folder)
    assert len(frames) == STEPS
    assert len(reader.damage) == STEPS
    assert f"{name} is missing (4 rows lost)" in str(reader.damage[0])


def test_without_a_manifest_all_frames_are_read_and_reported(folder: Path) -> None:
    (folder / "manifest.jsonl").unlink()
    frames, reader = read_frames(folder)
    assert frames == ALL_FRAMES
    assert "manifest.jsonl" in str(reader.damage[0])


def test_read_rollouts_raises_at_the_damaged_step(folder: Path) -> None:
    path = folder / "train.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-5])
    rows = read_rows(folder, "train")
    assert [next(rows)["step"] for _ in range(12)] == [1] * 4 + [2] * 4 + [3] * 4
    with pytest.raises(RunDataError, match=r"train, step 4: .* 5 bytes"):
        next(rows)
    assert len(list(read_rows(folder, "validation"))) == 16
    with pytest.raises(RunError, match="does not exist"):
        next(read_rows(folder / "none"))


def test_steps_in_the_metrics_but_not_in_the_log_are_damage(folder: Path, tmp_path: Path) -> None:
    run, reader = tmp_path / "run", RolloutReader(folder)
    (run / "results").mkdir(parents=True)
    assert find_missing_steps(run, reader) == []
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, STEPS + 3)]
    (run / "results" / "metrics.jsonl").write_text("".join(lines[:STEPS]) + '{"st')
    assert find_missing_steps(run, reader) == []
    (run / "results" / "metrics.jsonl").write_text("".join(lines))
    (damage,) = find_missing_steps(run, reader)
    assert str(damage).startswith("train, step 5: 2 steps")


def test_log_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    """The reader sees complete steps only, no damage, and more steps each time."""
    child = os.fork()
    if not child:
        try:
            log = RolloutLog(tmp_path)
            for step in range(1, 10**6):
                log.append(make_rollouts(step))
        finally:
            os._exit(1)
    try:
        counts = [0]
        while len(counts) < 20:
            reader = RolloutReader(tmp_path)
            rows = [row["step"] for row in reader.iter_rows()]
            assert not reader.damage, reader.damage
            assert rows == [step for step in range(1, len(rows) // 4 + 1) for _ in range(4)]
            if len(rows) > counts[-1]:
                counts.append(len(rows))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_reading_needs_the_memory_of_one_step(tmp_path: Path) -> None:
    log = RolloutLog(tmp_path)
    peaks = []
    for steps in (4, 24):
        for step in range(log.lines, steps):
            log.append(make_rollouts(step, groups=6, samples=6))
        tracemalloc.start()
        assert sum(1 for _ in RolloutReader(tmp_path).iter_rows()) == 36 * steps
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_a_log_of_the_old_schema_is_refused(tmp_path: Path) -> None:
    text = (
        '{"kind": "train", "step": 1, "rows": 1, "offset": 0, "bytes": 9, "raw": 9, "sha256": "0"}'
    )
    check = hashlib.sha256(text.encode()).hexdigest()[:16]
    (tmp_path / "manifest.jsonl").write_text(f'{text[:-1]}, "check": "{check}"}}\n')
    for open_log in (RolloutLog, lambda folder: list(RolloutReader(folder).iter_rows())):
        with pytest.raises(RunError, match=re.escape(str(tmp_path))):
            open_log(tmp_path)
