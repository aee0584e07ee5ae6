"""The rollout log: completed appends survive crashes, truncation and full disks; damage is reported and costs
only its frame."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.example_rollouts import make_rollouts
from tests.runs.killed_writer import kill_writer

from glasshouse.errors import RunDataError, RunError
from glasshouse.files import add_check
from glasshouse.runs.rollout_log import (
    EMPTY_POSITION,
    HEADER_BYTES,
    LogSize,
    RolloutLog,
    RolloutReader,
    read_rows,
    scan_log,
)
from glasshouse.runs.rows import RolloutFilter, kind_of, to_row

STEPS = 4
FRAMES = [(kind, step) for step in range(1, STEPS + 1) for kind in ("validation", "train")]


def append_steps(log: RolloutLog, steps: range) -> None:
    """Append a validation and a train frame per step, of 2 groups of 2 samples each."""
    for step in steps:
        log.append(make_rollouts(step, split="validation/greedy"))
        log.append(make_rollouts(step))


def read_frames(file: Path) -> tuple[list[tuple[str, int]], RolloutReader]:
    """(kind, step) of the frames that can be read, each with all its rows; and the reader."""
    reader = RolloutReader(file)
    rows = [(kind_of(r["split"]), r["step"]) for r in reader.iter_rows()]
    assert all(rows.count(frame) == 4 for frame in set(rows))
    return list(dict.fromkeys(rows)), reader


def list_frames(file: Path) -> list[tuple[str, int]]:
    """The same; asserts that nothing is damaged."""
    frames, reader = read_frames(file)
    assert not reader.damage
    assert not reader.unfinished
    return frames


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "log"
    append_steps(RolloutLog(file), range(1, STEPS + 1))
    return file


@pytest.fixture
def file(shared_log: Path, tmp_path: Path) -> Path:
    """A copy of the log, to damage."""
    return Path(shutil.copy(shared_log, tmp_path / "log"))


def test_appended_rollouts_are_read_back_also_by_zstd(shared_log: Path) -> None:
    assert list_frames(shared_log) == FRAMES
    rows = [to_row(r) for s in range(1, STEPS + 1) for r in make_rollouts(s)]
    assert list(read_rows(shared_log, "train")) == rows
    assert list(read_rows(shared_log, "train", after=3)) == rows[-4:]
    size = LogSize.of(scan_log(shared_log).frames)
    assert (size.rows, size.frames) == (4 * len(FRAMES), len(FRAMES))
    assert size.bytes == shared_log.stat().st_size
    if shutil.which("zstdcat"):
        text = subprocess.run(["zstdcat", shared_log], stdout=subprocess.PIPE, check=True).stdout
        assert len(text) == size.raw
    with pytest.raises(RunError, match="does not exist"):
        next(read_rows(shared_log.parent / "none"))


@pytest.mark.parametrize(
    ("rollout_filter", "matches"),
    [
        (RolloutFilter(), lambda r: True),
        (RolloutFilter(splits=("train",)), lambda r: kind_of(r["split"]) == "train"),
        (RolloutFilter(first_step=2, last_step=3), lambda r: 2 <= r["step"] <= 3),
        (RolloutFilter(splits=("validation/greedy",)), lambda r: r["split"] == "validation/greedy"),
        (RolloutFilter(correct=True), lambda r: r["reward"] == 1),
        (RolloutFilter(correct=False), lambda r: r["reward"] < 1),
        (RolloutFilter(min_reward=0.2, max_reward=0.9), lambda r: r["reward"] == 0.25),
        (RolloutFilter(text="MAYBE 1"), lambda r: "Maybe 1" in r["text"]),
        (RolloutFilter(text="is 2 +"), lambda r: r["step"] == 2),
    ],
)
def test_each_filter_selects_exactly_the_matching_rows(
    shared_log: Path, rollout_filter: RolloutFilter, matches: Callable[[dict[str, Any]], bool]
) -> None:
    all_rows = list(RolloutReader(shared_log).iter_rows())
    expected = [row for row in all_rows if matches(row)]
    assert list(RolloutReader(shared_log).iter_rows(rollout_filter)) == expected
    assert expected
    assert (len(expected) < len(all_rows)) == (rollout_filter != RolloutFilter())


# --- truncation ----------------------------------------------------------------------------


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("after", range(3))
def test_truncated_log_equals_one_that_was_never_longer(
    tmp_path: Path, before: int, after: int
) -> None:
    log, other = RolloutLog(tmp_path / "a"), RolloutLog(tmp_path / "b")
    append_steps(log, range(1, before + 1))
    position, data = log.get_position(), log.file.read_bytes()
    append_steps(log, range(before + 1, before + after + 1))
    log.truncate_to(position)
    assert log.file.read_bytes() == data
    assert log.get_position() == position
    append_steps(log, range(before + 1, before + 3))
    append_steps(other, range(1, before + 3))
    assert log.file.read_bytes() == other.file.read_bytes()


def test_position_of_another_log_is_refused_and_lost_bytes_stay_known_as_damage(file: Path) -> None:
    log = RolloutLog(file)
    end = log.get_position()
    os.truncate(file, end["bytes"] - 20)
    log = RolloutLog(file, saved=end["bytes"])
    log.truncate_to(end)
    append_steps(log, range(9, 10))
    frames, reader = read_frames(file)
    assert frames == [*FRAMES[:-1], ("validation", 9), ("train", 9)]
    assert len(reader.damage) == 1
    log.truncate_to(EMPTY_POSITION)
    assert file.read_bytes() == b""
    append_steps(log, range(5, 10))
    data = file.read_bytes()
    with pytest.raises(RunDataError, match="belongs to another run"):
        log.truncate_to(end)
    assert file.read_bytes() == data


# --- crashes -------------------------------------------------------------------------------


def test_append_cut_off_at_any_byte_is_unfinished_and_removed_on_opening(file: Path) -> None:
    before = file.read_bytes()
    RolloutLog(file).append(make_rollouts(5))
    after = file.read_bytes()
    for end in sorted({*range(len(before) + 1, len(after), 31), len(after) - 1}):
        file.write_bytes(after[:end])
        frames, reader = read_frames(file)
        assert frames == FRAMES
        assert reader.unfinished
        assert not reader.damage
        RolloutLog(file)
        assert file.read_bytes() == before, end


def test_frame_that_a_disk_lost_is_removed_on_opening_only_if_it_is_the_last(file: Path) -> None:
    data = file.read_bytes()
    for frame in scan_log(file).frames:
        file.write_bytes(data[: frame.end - 9] + bytes(9) + data[frame.end :])
        log = RolloutLog(file)
        is_last = frame.end == len(data)
        assert file.stat().st_size == (frame.offset if is_last else len(data))
        log.append(make_rollouts(5))
        lost = (frame.kind, frame.step)
        assert read_frames(file)[0] == [*(f for f in FRAMES if f != lost), ("train", 5)]


def test_kills_at_random_times_lose_and_duplicate_no_completed_step(tmp_path: Path) -> None:
    """15 kills; `python -m tests.runs.killed_writer FILE 1000` for more."""
    generator = random.Random(0)
    for _ in range(15):
        kill_writer(tmp_path / "log", generator)


def test_full_disk_keeps_all_earlier_frames_and_appending_works_again_with_space(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (disk / "filler").write_bytes(bytes(40_000))
        log, step, error_number = RolloutLog(disk / "log"), 0, 0
        while not error_number:
            step, position = step + 1, log.get_position()
            try:
                log.append(make_rollouts(step, groups=8, samples=8))
            except OSError as error:
                error_number = error.errno or 0
        assert error_number == errno.ENOSPC
        assert log.get_position() == position
        assert RolloutLog(log.file).get_position() == position
        (disk / "filler").unlink()
        log.append(make_rollouts(step))
        assert [frame.step for frame in scan_log(log.file).frames] == list(range(1, step + 1))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- damage --------------------------------------------------------------------------------


def test_flipped_bit_anywhere_is_reported_and_loses_its_frame_only(file: Path) -> None:
    data, found = file.read_bytes(), scan_log(file).frames
    for position in range(0, len(data), 29):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        frames, reader = read_frames(file)
        assert frames == [(f.kind, f.step) for f in found if not f.offset <= position < f.end]
        assert len(reader.damage) == 1, position
        with pytest.raises(RunDataError, match="damaged"):
            list(read_rows(file))


def test_log_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    """The reader sees complete steps only, no damage, and more steps each time."""
    file = tmp_path / "log"
    RolloutLog(file)
    child = os.fork()
    if not child:
        try:
            log = RolloutLog(file)
            for step in range(1, 10**6):
                log.append(make_rollouts(step))
                time.sleep(0.005)  # the reader reads all of it each time
        finally:
            os._exit(1)
    try:
        counts = [0]
        while len(counts) < 20:
            reader = RolloutReader(file)
            rows = [row["step"] for row in reader.iter_rows()]
            assert not reader.damage, reader.damage
            assert rows == [step for step in range(1, len(rows) // 4 + 1) for _ in range(4)]
            if len(rows) > counts[-1]:
                counts.append(len(rows))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_reading_needs_the_memory_of_one_step(tmp_path: Path) -> None:
    log, peaks = RolloutLog(tmp_path / "log"), []
    for steps in (range(4), range(4, 24)):
        for step in steps:
            log.append(make_rollouts(step, groups=6, samples=6))
        tracemalloc.start()
        assert sum(1 for _ in RolloutReader(log.file).iter_rows()) == 36 * steps.stop
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_a_log_of_another_schema_is_refused(file: Path) -> None:
    header = add_check({"schema": 4, "kind": "train"})
    text = str(header).replace("'", '"')
    file.write_bytes(file.read_bytes()[:8] + f"{text:{HEADER_BYTES - 9}}\n".encode())
    for read in (lambda: RolloutLog(file), lambda: list(RolloutReader(file).iter_rows())):
        with pytest.raises(RunError, match="another version"):
            read()
