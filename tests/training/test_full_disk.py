"""A full disk (a real, small file system) stops the run with an error and loses nothing."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proofs.resume import SMALL, Result, list_differences, train
from tests.training.short_runs import CHECKPOINT_FILES, SHORT, SharedRuns, resume

from glasshouse.cli.app import main
from glasshouse.learn.learner import LearnerState
from glasshouse.models.policy import load_policy
from glasshouse.runs import checkpoints
from glasshouse.training.checkpointing import save_checkpoint
from glasshouse.training.display import Display

pytestmark = pytest.mark.xdist_group("short runs")  # one worker makes the expensive fixtures once
PAGE = 4096


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mount_point)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def fill_disk(disk: Path, free: int) -> None:
    """Fill the disk up to `free` bytes."""
    (disk / "filler").write_bytes(b"x" * max(0, shutil.disk_usage(disk).free - free))


def space_up_to_middle_of(file: str, checkpoint: Path) -> int:
    """Bytes that let a checkpoint be written up to the middle of one of its files."""
    order = sorted(checkpoint.iterdir(), key=lambda p: p.stat().st_mtime_ns)
    pages = {p.name: -(-p.stat().st_size // PAGE) for p in order}
    names = list(pages)
    return PAGE * (sum(pages[n] for n in names[: names.index(file)]) + pages[file] // 2)


class FillDiskAtStep(Display):
    def __init__(self, disk: Path, step: int, free: int) -> None:
        self.disk, self.fill_step, self.free = disk, step, free

    def step(self, row: dict[str, Any], groups: list) -> None:
        if row["step"] == self.fill_step:
            fill_disk(self.disk, self.free)


@pytest.fixture(scope="module")
def written(shared_runs: SharedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose files have the times at which they were written."""
    folder = tmp_path_factory.mktemp("written")
    return write_step_4(folder, shared_runs)


def write_step_4(folder: Path, shared_runs: SharedRuns) -> Path:
    source = shared_runs.killed[5] / "checkpoints" / "step-000004"
    state, _, tensors = checkpoints.read_checkpoint(source)
    policy, learner = load_policy(str(source)), LearnerState(4, tensors)
    return save_checkpoint(folder, state, policy, learner).path


@pytest.mark.parametrize("file", CHECKPOINT_FILES)
def test_disk_full_in_any_file_of_a_checkpoint_leaves_no_partial_checkpoint(
    small_disk: Path, shared_runs: SharedRuns, written: Path, file: str
) -> None:
    folder = shutil.copytree(shared_runs.killed[3] / "checkpoints", small_disk / "checkpoints")
    fill_disk(small_disk, space_up_to_middle_of(file, written))
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_step_4(folder, shared_runs)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in folder.iterdir()] == ["step-000002"]
    assert not checkpoints.verify_checkpoint(folder / "step-000002")


@pytest.mark.parametrize(("step", "free"), [(4, 16 * PAGE), (3, 0)],
                         ids=["checkpoint", "frame"])  # fmt: skip
def test_full_disk_stops_the_run_and_resuming_with_space_is_bitwise_equal(
    small_disk: Path, shared_runs: SharedRuns, expected: Result, step: int, free: int
) -> None:
    """Step 4 saves a checkpoint. Step 3 does not, so there the next write is step 4's frame."""
    run = shutil.copytree(shared_runs.killed[3], small_disk / "run")
    with pytest.raises(OSError, match="No space left on device"):
        train(run, FillDiskAtStep(small_disk, step, free), SHORT)
    assert [c.step for c in checkpoints.list_checkpoints(run / "checkpoints")] == [2]
    assert not checkpoints.verify_checkpoint(run / "checkpoints" / "step-000002")
    (small_disk / "filler").unlink()
    resume(run)
    assert not list_differences(run, expected)


def test_full_disk_is_exit_code_2_with_a_message(
    small_disk: Path, shared_runs: SharedRuns, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = shutil.copytree(shared_runs.killed[3], small_disk / "run")
    display = FillDiskAtStep(small_disk, 4, 0)
    monkeypatch.setattr("glasshouse.training.display.Display", lambda: display)
    assert main(["train", "--quiet", *SMALL, *SHORT, f"out={run}"]) == 2
    assert "disk is full" in capsys.readouterr().err


def test_supervised_training_whose_model_does_not_fit_is_one_sentence(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """safetensors wraps the error of the operating system in its own."""
    mock = str(Path(SMALL[0].partition("=")[2]))
    command = [
        "sft",
        mock,
        "--recipe",
        "mock",
        "--out",
        str(small_disk / "out"),
        "--batch-size",
        "2",
    ]
    fill_disk(small_disk, 15 * PAGE)
    assert main([*command, "steps=1"]) == 2
    assert "The disk is full" in capsys.readouterr().err
    assert not (small_disk / "out").exists()
    (small_disk / "filler").unlink()
    assert main([*command, "steps=1"]) == 0
    load_policy(str(small_disk / "out"))
