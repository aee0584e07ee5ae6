"""Damaged checkpoints are skipped with a warning, and a pickle in a checkpoint is never executed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from proofs.resume import Result, list_differences, train
from tests.training.short_runs import CHECKPOINT_FILES, SHORT, Crash, resume

from glasshouse.cli.app import main
from glasshouse.errors import RunError
from glasshouse.files import write_checksums
from glasshouse.models.policy import load_policy
from glasshouse.runs import checkpoints
from glasshouse.runs.rollout_log import LOG
from glasshouse.runs.verify import verify_run
from glasshouse.training.display import Display

pytestmark = pytest.mark.xdist_group("short runs")  # one worker makes the expensive fixtures once


def flip_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def remove_last_byte(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


DAMAGES = (flip_bit, remove_last_byte, Path.unlink)


@pytest.mark.parametrize("file", CHECKPOINT_FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_any_file_of_a_checkpoint_is_detected(
    killed_at_5: Path, file: str, damage
) -> None:
    newest = killed_at_5 / "checkpoints" / "step-000004"
    assert {path.name for path in newest.iterdir()} == {*CHECKPOINT_FILES, "README.md"}
    damage(newest / file)
    valid, damaged = checkpoints.newest_checkpoint(killed_at_5 / "checkpoints")
    assert valid is not None
    assert (valid.step, [c.step for c in damaged]) == (2, [4])
    if file != "checksums.json":  # a flipped bit there is a wrong checksum of another file
        assert file in damaged[0].damage[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_with_a_warning(
    killed_at_5: Path, expected: Result, damage
) -> None:
    damage(killed_at_5 / "checkpoints" / "step-000004" / "model.safetensors")
    assert main(["check", str(killed_at_5)]) == 1
    messages = resume(killed_at_5)
    assert any("step-000004 is damaged" in message for message in messages), messages
    assert "resumed at 2" in messages
    assert not list_differences(killed_at_5, expected)


@pytest.mark.parametrize("name", ["validation.jsonl", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data_files_are_named_and_written_again(
    killed_at_5: Path, expected: Result, damage, name: str
) -> None:
    file = killed_at_5 / "data" / name
    intact = file.read_bytes()
    assert verify_run(killed_at_5).is_sound
    damage(file)
    if name == "manifest.json" and damage is not flip_bit:
        return  # older runs have none, and its last byte is a line end
    assert [item.file for item in verify_run(killed_at_5).damage] == [f"data/{name}"]
    if damage is flip_bit:
        messages = resume(killed_at_5)
        assert any(f"data/{name} is damaged" in message for message in messages), messages
        assert not list_differences(killed_at_5, expected)
        if name == "validation.jsonl":
            assert file.read_bytes() == intact
        assert verify_run(killed_at_5).is_sound


def test_without_a_valid_checkpoint_the_run_stops_and_changes_nothing(killed_at_5: Path) -> None:
    for path in (killed_at_5 / "checkpoints").iterdir():
        flip_bit(path / "model.safetensors")
    log = killed_at_5 / "results" / LOG
    data = log.read_bytes()
    with pytest.raises(RunError, match=r"No checkpoint of .* is valid"):
        resume(killed_at_5)
    assert log.read_bytes() == data


PAYLOAD = (
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94"
    b"\x8c\x0etouch executed\x94\x85\x94R\x94."
)
"""A pickle that creates a file `executed` when it is loaded."""


class StopWhenReady(Display):
    """Stops after the checkpoint is restored, before training."""

    def resumed(self, *arguments: object) -> None:
        raise Crash


@pytest.mark.parametrize(
    "file", [*CHECKPOINT_FILES, "pytorch_model.bin", "optimizer.pt", "training_args.bin"]
)
def test_planted_pickle_is_never_executed(
    killed_at_5: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its checksum was forged."""
    monkeypatch.chdir(killed_at_5)
    newest = killed_at_5 / "checkpoints" / "step-000004"
    (newest / file).write_bytes(PAYLOAD)
    if file != "checksums.json":
        (newest / "checksums.json").unlink()
        write_checksums(newest)
    with suppress(RunError, OSError, Crash):
        train(killed_at_5, StopWhenReady(), SHORT)
    with suppress(RunError, OSError):
        load_policy(str(newest))
    assert not (killed_at_5 / "executed").exists()


def test_payload_is_executed_when_unpickled(tmp_path: Path) -> None:
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", code], input=PAYLOAD, cwd=tmp_path, check=True)
    assert (tmp_path / "executed").exists()
