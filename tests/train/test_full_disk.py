"""A full disk, a real one: the run stops with a sentence, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from proofs.resume import SMALL, differing, train
from tests.train.interrupted import FEW, FILES, go_on

from glasshouse.cli import main
from glasshouse.store import checkpoints
from glasshouse.train.display import Display


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


class Fills(Display):
    """Fills the disk after a step, all but so many bytes."""

    def __init__(self, disk: Path, step: int, leave: int) -> None:
        self.disk, self.at, self.leave = disk, step, leave

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == self.at:
            free = shutil.disk_usage(self.disk).free
            (self.disk / "filler").write_bytes(b"x" * max(0, free - self.leave))


def room_before(file: str, checkpoint: Path) -> int:
    """Bytes that let a checkpoint be written up to the middle of one of its files."""
    order = sorted(checkpoint.iterdir(), key=lambda p: p.stat().st_mtime_ns)
    pages = {p.name: -(-p.stat().st_size // 4096) for p in order}
    names = list(pages)
    return 4096 * (sum(pages[n] for n in names[: names.index(file)]) + pages[file] // 2)


@pytest.mark.parametrize("file", [*FILES, "a frame", "a frame's line"])
def test_a_full_disk_stops_the_run_and_loses_nothing(
    small_disk: Path, whole: dict[str, object], cut: Path, file: str
) -> None:
    """Step 4 saves a checkpoint, step 3 does not: there the next frame of the record is hit."""
    out = small_disk / "run"
    if file in FILES:
        fills = Fills(small_disk, 4, room_before(file, cut / "checkpoints" / "step-000004"))
    else:
        fills = Fills(small_disk, 3, 0 if file == "a frame" else 8192)
    with pytest.raises(OSError, match="No space left on device"):
        train(out, fills, FEW)
    held = checkpoints.listed(out / "checkpoints")
    assert [c.step for c in held if not c.faults] == [2]
    assert not [p for p in (out / "checkpoints").iterdir() if p.name != "step-000002"]
    (small_disk / "filler").unlink()
    go_on(out)
    assert not differing(out, whole)


def test_a_full_disk_is_a_sentence(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("glasshouse.train.display.Quiet", lambda: Fills(small_disk, 4, 0))
    assert main(["train", "--quiet", *SMALL, *FEW, f"out={small_disk / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert "The disk is full" in said
    assert "goes on from the last checkpoint" in said
