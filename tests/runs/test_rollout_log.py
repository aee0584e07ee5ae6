"""The rollout log's writer: completed appends survive crashes, truncation and full disks."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.example_rollouts import make_rollout, make_rollouts
from tests.runs.killed_writer import kill_writer

from glasshouse.errors import RunDataError
from glasshouse.runs.manifest import kind_of, measure_log
from glasshouse.runs.rollout_log import EMPTY_POSITION, RolloutLog
from glasshouse.runs.rollout_reader import RolloutReader, read_rows
from glasshouse.runs.rows import to_row


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def append_steps(log: RolloutLog, steps: range) -> None:
    """Append a train frame per step, and a validation frame at odd steps."""
    for step in steps:
        if step % 2:
            log.append(make_rollouts(step, split="validation/greedy"))
        log.append(make_rollouts(step))


def list_frames(folder: Path) -> list[tuple[str, int]]:
    """(kind, step) of every frame, in order; asserts that nothing is damaged."""
    reader = RolloutReader(folder)
    frames = list(dict.fromkeys((kind_of(row["split"]), row["step"]) for row in reader.iter_rows()))
    assert not reader.damage
    assert not reader.unfinished
    return frames


FRAMES = [("validation", 1), ("train", 1), ("train", 2), ("validation", 3), ("train", 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append_steps(RolloutLog(tmp_path / "log"), range(1, 4))
    return tmp_path / "log"


def test_appended_rollouts_are_read_back(folder: Path) -> None:
    assert list_frames(folder) == FRAMES
    rows = [to_row(r) for s in (1, 2, 3) for r in make_rollouts(s)]
    assert list(read_rows(folder, "train")) == rows
    assert list(read_rows(folder, "train", after=2)) == rows[-4:]
    assert list(read_rows(folder)) == list(RolloutReader(folder).iter_rows())


def test_measured_size_is_that_of_the_files(folder: Path) -> None:
    size, log = measure_log(folder), RolloutLog(folder)
    file_sizes = {p.name: p.stat().st_size for p in folder.glob("*.zst")}
    assert (size.bytes, size.rows, size.frames) == (sum(file_sizes.values()), 20, 5)
    assert size.raw > size.bytes
    assert log.size == size
    assert log.get_position()["bytes"].items() >= file_sizes.items()


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
def test_truncated_log_equals_one_that_was_never_longer(
    tmp_path: Path, before: int, after: int
) -> None:
    log = RolloutLog(tmp_path / "a")
    append_steps(log, range(1, before + 1))
    position, files = log.get_position(), read_files(tmp_path / "a")
    append_steps(log, range(before + 1, before + after + 1))
    removed = log.truncate_to(position)
    assert [e.step for e in removed if e.kind == "train"] == list(
        range(before + 1, before + after + 1)
    )
    assert read_files(tmp_path / "a") == files
    assert log.get_position() == position
    append_steps(log, range(before + 1, before + 3))
    append_steps(RolloutLog(tmp_path / "b"), range(1, before + 3))
    assert read_files(tmp_path / "a") == read_files(tmp_path / "b")


def test_truncation_interrupted_by_a_crash_is_completed_on_opening(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes at each flush in turn."""
    short = tmp_path / "short"
    append_steps(RolloutLog(short), range(1, 2))
    position = RolloutLog(short).get_position()
    for crash in range(20):
        copy = tmp_path / f"copy{crash}"
        shutil.copytree(folder, copy)
        log, calls = RolloutLog(copy), iter(range(100))

        def fsync(handle: int, calls=calls, crash=crash) -> None:
            if next(calls) == crash:
                raise SystemExit

        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", fsync)
            try:
                log.truncate_to(position)
            except SystemExit:
                pass
            else:
                assert read_files(copy) == read_files(short)
                return
        RolloutLog(copy)
        # Either the truncation had not started, or it is complete.
        assert read_files(copy) in (read_files(folder), read_files(short)), crash
        if crash > 1:
            assert read_files(copy) == read_files(short), crash
    raise AssertionError("the truncation never ends")


def test_position_that_the_log_does_not_contain_is_refused_without_changes(folder: Path) -> None:
    log = RolloutLog(folder)
    end = log.get_position()
    log.truncate_to(EMPTY_POSITION)
    assert read_files(folder) == {}
    append_steps(log, range(1, 3))
    files = read_files(folder)
    with pytest.raises(RunDataError, match="fewer than when the checkpoint was saved"):
        log.truncate_to(end)
    append_steps(log, range(5, 9))
    with pytest.raises(RunDataError, match=r"manifest\.jsonl differs"):
        log.truncate_to(end)
    assert all(data.startswith(files[name]) for name, data in read_files(folder).items())


# --- crashes -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_append_cut_off_at_any_byte_is_removed_on_opening(tmp_path: Path, kind: str) -> None:
    """A crash can leave part of a frame, or the frame and part of its manifest line."""
    log = RolloutLog(tmp_path / "a")
    append_steps(log, range(1, 3))
    before = read_files(tmp_path / "a")
    log.append(make_rollouts(3, split=kind))
    after, frame_file = read_files(tmp_path / "a"), f"{kind}.jsonl.zst"
    for name, others in ((frame_file, before), ("manifest.jsonl", after)):
        first, last = len(before[name]), len(after[name])
        for end in sorted({*range(first, last, 31), first + 1, last - 2, last - 1}):
            for file, data in others.items():
                (tmp_path / "a" / file).write_bytes(data)
            (tmp_path / "a" / name).write_bytes(after[name][:end])
            reopened = RolloutLog(tmp_path / "a")
            assert read_files(tmp_path / "a") == before, (name, end)
            assert bool(reopened.repairs) == (name != frame_file or end > len(before[name]))


def test_manifest_line_without_its_frame_is_removed_on_opening(folder: Path) -> None:
    """A disk may report a write as flushed and lose it."""
    path = folder / "train.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-3])
    log = RolloutLog(folder)
    assert "train, step 3" in log.repairs[0]
    assert list_frames(folder) == FRAMES[:-1]
    log.append(make_rollouts(3))
    assert list_frames(folder) == FRAMES
    path.unlink()
    RolloutLog(folder)
    assert list_frames(folder) == [f for f in FRAMES if f[0] == "validation"]


def test_damage_in_the_middle_is_kept_and_reported_by_the_reader(folder: Path) -> None:
    """Truncating there would remove intact frames."""
    damaged = bytearray((folder / "train.jsonl.zst").read_bytes())
    damaged[20] ^= 1
    (folder / "train.jsonl.zst").write_bytes(damaged)
    log = RolloutLog(folder)
    assert log.repairs == []
    log.append(make_rollouts(4))
    reader = RolloutReader(folder)
    assert {r["step"] for r in reader.iter_rows() if kind_of(r["split"]) == "train"} == {2, 3, 4}
    assert [(d.kind, d.step) for d in reader.damage] == [("train", 1)]


def test_log_with_a_lost_manifest_is_refused_without_changes(folder: Path) -> None:
    (folder / "manifest.jsonl").rename(folder.parent / "backup")
    files = read_files(folder)
    with pytest.raises(RunDataError, match=r"manifest\.jsonl has lost lines"):
        RolloutLog(folder)
    assert read_files(folder) == files
    (folder.parent / "backup").rename(folder / "manifest.jsonl")
    RolloutLog(folder)
    assert list_frames(folder) == FRAMES


def test_kills_at_random_times_lose_and_duplicate_no_completed_step(tmp_path: Path) -> None:
    """15 kills; `python -m tests.runs.killed_writer FOLDER 1000` for more."""
    generator = random.Random(0)
    for _ in range(15):
        kill_writer(tmp_path / "log", generator)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 64 kB, in pages of 4 kB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount_point)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mount.returncode:
        pytest.skip(f"mounting a small disk needs root: {mount.stderr.strip()}")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def test_full_disk_keeps_all_earlier_frames_and_appending_works_again_with_space(
    small_disk: Path,
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(40_000))
    folder = small_disk / "log"
    log, step, error_number = RolloutLog(folder), 0, 0
    while not error_number:
        step, position = step + 1, log.get_position()
        try:
            log.append(make_rollouts(step, groups=8, samples=8))
        except OSError as error:
            error_number = error.errno or 0
    assert error_number == errno.ENOSPC
    assert log.get_position() == position
    assert RolloutLog(folder).get_position() == position
    assert list_frames(folder) == [("train", s) for s in range(1, step)]
    filler.unlink()
    log.append(make_rollouts(step))
    assert list_frames(folder) == [("train", s) for s in range(1, step + 1)]


def test_disk_full_within_a_manifest_line_keeps_all_earlier_frames(small_disk: Path) -> None:
    """Frees the disk page by page until frame and line fit; with one page less, the line is cut."""
    folder, filler, page = small_disk / "log", small_disk / "filler", 4096
    log = RolloutLog(folder)
    while log.file_sizes.get("manifest.jsonl", 0) < page - 250:
        log.append(make_rollouts(log.lines, 1, 1))
    position, failures = log.get_position(), 0
    long_step = 10**250  # makes a line that crosses the end of the page
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(page)):
            pass
    while log.get_position() == position:
        try:
            log.append([replace(make_rollout(1), step=long_step)])
        except OSError:
            failures += 1
            assert log.get_position() == position
            assert RolloutLog(folder).get_position() == position
            assert len(list_frames(folder)) == position["lines"]
            os.truncate(filler, filler.stat().st_size - page)
    assert failures
    assert any("manifest.jsonl" in repair for repair in log.repairs)
    assert list_frames(folder)[-1] == ("train", long_step)
