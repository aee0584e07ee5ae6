"""The record's writer: what was appended is there, whatever happened on the way."""

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
from tests.store.appending import kill_once
from tests.store.made import rollout, rollouts

from glasshouse.errors import RecordError
from glasshouse.store import Reader, RolloutLog, read, storage
from glasshouse.store.rollout_rows import row


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def appends(log: RolloutLog, steps: range) -> None:
    for step in steps:
        if step % 2:
            log.append("validation", step, rollouts(step, split="validation/greedy"))
        log.append("train", step, rollouts(step))


def content(folder: Path) -> list[tuple[str, int]]:
    """(kind, step) of every frame that can be read, in order; nothing may be damaged."""
    reader = Reader(folder)
    found = list(dict.fromkeys((row["kind"], row["step"]) for row in reader.rows()))
    assert not reader.damage
    assert not reader.unfinished
    return found


FRAMES = [("validation", 1), ("train", 1), ("train", 2), ("validation", 3), ("train", 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    appends(RolloutLog(tmp_path / "record"), range(1, 4))
    return tmp_path / "record"


def test_what_is_appended_is_read_back(folder: Path) -> None:
    assert content(folder) == FRAMES
    wanted = [{"kind": "train", **row(r)} for step in (1, 2, 3) for r in rollouts(step)]
    assert list(read(folder, "train")) == wanted
    assert list(read(folder, "train", after=2)) == wanted[-4:]
    assert list(read(folder)) == list(Reader(folder).rows())


def test_its_storage_is_what_the_files_take(folder: Path) -> None:
    found, log = storage(folder), RolloutLog(folder)
    sizes = {p.name: p.stat().st_size for p in folder.glob("*.zst")}
    assert (found.bytes, found.rows, found.frames) == (sum(sizes.values()), 20, 5)
    assert found.raw > found.bytes
    assert log.storage == found
    assert log.position()["bytes"].items() >= sizes.items()


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
def test_a_rewind_is_as_if_nothing_had_been_appended(
    tmp_path: Path, before: int, after: int
) -> None:
    log = RolloutLog(tmp_path / "a")
    appends(log, range(1, before + 1))
    position, wanted = log.position(), files(tmp_path / "a")
    appends(log, range(before + 1, before + after + 1))
    removed = log.rewind(position)
    assert [e.step for e in removed if e.kind == "train"] == list(
        range(before + 1, before + after + 1)
    )
    assert files(tmp_path / "a") == wanted
    assert log.position() == position
    appends(log, range(before + 1, before + 3))
    appends(RolloutLog(tmp_path / "b"), range(1, before + 3))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_rewind_that_a_crash_stopped_is_finished_on_opening(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at each call that changes a file."""
    wanted = tmp_path / "wanted"
    appends(RolloutLog(wanted), range(1, 2))
    position = RolloutLog(wanted).position()
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
                log.rewind(position)
            except SystemExit:
                pass
            else:
                assert files(copy) == files(wanted)
                return
        RolloutLog(copy)
        # either it had not begun, or it is finished
        assert files(copy) in (files(folder), files(wanted)), crash
        if crash > 1:
            assert files(copy) == files(wanted), crash
    raise AssertionError("a rewind that never ends")


def test_a_position_that_is_not_there_is_a_sentence_and_changes_nothing(
    folder: Path, tmp_path: Path
) -> None:
    log = RolloutLog(folder)
    end = log.position()
    log.rewind(RolloutLog(tmp_path / "empty").position() | {"bytes": {}})
    assert files(folder) == {}
    appends(log, range(1, 3))
    before = files(folder)
    with pytest.raises(RecordError, match=r"is shorter .* Take an older checkpoint"):
        log.rewind(end)
    appends(log, range(5, 9))
    with pytest.raises(RecordError, match="another run's, or was changed"):
        log.rewind(end)
    assert all(after.startswith(before[name]) for name, after in files(folder).items())


# --- crashes -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_an_append_cut_anywhere_is_undone_on_opening(tmp_path: Path, kind: str) -> None:
    """What a crash can leave of a frame, and of its line."""
    log = RolloutLog(tmp_path / "a")
    appends(log, range(1, 3))
    before = files(tmp_path / "a")
    log.append(kind, 3, rollouts(3, split=kind))
    after, data = files(tmp_path / "a"), f"{kind}.jsonl.zst"
    for name, others in ((data, before), ("manifest.jsonl", after)):
        first, last = len(before[name]), len(after[name])
        for end in sorted({*range(first, last, 17), first + 1, last - 2, last - 1}):
            for file, content_of in others.items():
                (tmp_path / "a" / file).write_bytes(content_of)
            (tmp_path / "a" / name).write_bytes(after[name][:end])
            again = RolloutLog(tmp_path / "a")
            assert files(tmp_path / "a") == before, (name, end)
            assert bool(again.repairs) == (name != data or end > len(before[name]))


def test_a_line_without_its_frame_is_taken_back(folder: Path) -> None:
    """A disk that lied about what it had written."""
    path = folder / "train.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-3])
    log = RolloutLog(folder)
    assert log.repairs[0] == (
        "train, step 3: its frame is not whole, and its line was taken out of the manifest"
    )
    assert content(folder) == FRAMES[:-1]
    log.append("train", 3, rollouts(3))
    assert content(folder) == FRAMES
    path.unlink()
    RolloutLog(folder)
    assert content(folder) == [f for f in FRAMES if f[0] == "validation"]


def test_damage_in_the_middle_is_left_for_the_reader_to_report(folder: Path) -> None:
    """Cutting it away would take good frames with it."""
    before = files(folder)
    damaged = bytearray(before["train.jsonl.zst"])
    damaged[20] ^= 1
    (folder / "train.jsonl.zst").write_bytes(damaged)
    log = RolloutLog(folder)
    assert log.repairs == []
    log.append("train", 4, rollouts(4))
    reader = Reader(folder)
    assert {r["step"] for r in reader.rows() if r["kind"] == "train"} == {2, 3, 4}
    assert [(d.kind, d.step) for d in reader.damage] == [("train", 1)]


def test_a_lost_manifest_does_not_cost_the_frames(folder: Path) -> None:
    (folder / "manifest.jsonl").rename(folder.parent / "kept")
    before = files(folder)
    with pytest.raises(RecordError, match=r"more than a crash can leave.*nothing was changed"):
        RolloutLog(folder)
    assert files(folder) == before
    (folder.parent / "kept").rename(folder / "manifest.jsonl")
    RolloutLog(folder)
    assert content(folder) == FRAMES


def test_killed_at_random_moments_no_committed_frame_is_lost_and_none_is_there_twice(
    tmp_path: Path,
) -> None:
    """Forty here; `python tests/store/appending.py FOLDER 1000` for more."""
    chance = random.Random(0)
    for _ in range(40):
        kill_once(tmp_path / "record", chance)


@pytest.fixture
def small_disk(tmp_path: Path):
    """64 kB, in pages of 4."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_all_earlier_frames_and_space_lets_it_go_on(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(40_000))
    folder = small_disk / "record"
    log, step = RolloutLog(folder), 0
    full = 0
    while not full:
        step, before = step + 1, log.position()
        try:
            log.append("train", step, rollouts(step, groups=8, samples=8))
        except OSError as error:  # inside a frame
            full = error.errno or 0
    assert full == errno.ENOSPC
    assert log.position() == before
    assert RolloutLog(folder).position() == before
    assert content(folder) == [("train", s) for s in range(1, step)]
    filler.unlink()
    log.append("train", step, rollouts(step))
    assert content(folder) == [("train", s) for s in range(1, step + 1)]


def test_a_disk_that_fills_within_a_manifest_line(small_disk: Path) -> None:
    """Page by page, until frame and line fit; at one page less the line is torn."""
    folder, filler, page = small_disk / "record", small_disk / "filler", 4096
    log = RolloutLog(folder)
    while log.sizes.get("manifest.jsonl", 0) < page - 250:
        log.append("train", log.lines, rollouts(log.lines, 1, 1))
    before, failures = log.position(), 0
    far = 10**250  # its line goes over the page's end
    with open(filler, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(page)):
            pass
    while log.position() == before:
        try:
            log.append("train", far, [replace(rollout(1), step=far)])
        except OSError:
            failures += 1
            assert log.position() == before
            assert RolloutLog(folder).position() == before
            assert len(content(folder)) == before["lines"]
            os.truncate(filler, filler.stat().st_size - page)
    assert failures
    assert any("manifest.jsonl" in repair for repair in log.repairs)
    assert content(folder)[-1] == ("train", far)
