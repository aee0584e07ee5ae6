"""Damaged checkpoints are passed over loudly, and a pickle in one never runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from proofs.resume import differing
from tests.train.interrupted import FILES, go_on

from glasshouse.cli import main
from glasshouse.errors import RunError
from glasshouse.models import load
from glasshouse.store import checkpoints


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def shorten(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [flip, shorten, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_loudly(
    cut: Path, whole: dict[str, object], tmp_path: Path, file: str, damage
) -> None:
    out = tmp_path / "a"
    shutil.copytree(cut, out)
    newest = out / "checkpoints" / "step-000004"
    assert {p.name for p in newest.iterdir()} == set(FILES)
    damage(newest / file)
    assert main(["checkpoints", str(out), "--json"]) == 1
    heard = go_on(out)
    assert any("step-000004 is damaged and was passed over" in h for h in heard), heard
    assert "resumed at 2" in heard
    assert not differing(out, whole)


def test_without_any_valid_checkpoint_it_stops(cut: Path, tmp_path: Path) -> None:
    shutil.copytree(cut, tmp_path / "a")
    for path in (tmp_path / "a" / "checkpoints").iterdir():
        flip(path / "model.safetensors")
    record = (tmp_path / "a" / "results" / "rollouts" / "train.jsonl.zst").read_bytes()
    with pytest.raises(RunError, match=r"No checkpoint of .* is valid"):
        go_on(tmp_path / "a")
    assert (tmp_path / "a" / "results" / "rollouts" / "train.jsonl.zst").read_bytes() == record


PAYLOAD = (
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94"
    b"\x8c\x0etouch executed\x94\x85\x94R\x94."
)
"""Unpickled, it makes a file `executed`."""


@pytest.mark.parametrize("file", [*FILES, "pytorch_model.bin", "optimizer.pt", "training_args.bin"])
def test_a_planted_pickle_never_runs(
    cut: Path, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one whose checksum was forged with it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(cut, tmp_path / "a")
    newest = tmp_path / "a" / "checkpoints" / "step-000004"
    (newest / file).write_bytes(PAYLOAD)
    if file != "sums.json":
        sums = json.loads((newest / "sums.json").read_text())
        sums[file] = checkpoints._sum(newest / file)
        (newest / "sums.json").write_text(checkpoints._listing(sums))
    for attempt in (lambda: go_on(tmp_path / "a"), lambda: load(str(newest))):
        with suppress(RunError, OSError):  # refused in words, or passed over, or never looked at
            attempt()
    assert not (tmp_path / "executed").exists()


def test_the_payload_would_run_if_it_were_unpickled(tmp_path: Path) -> None:
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    subprocess.run([sys.executable, "-c", code], input=PAYLOAD, cwd=tmp_path, check=True)
    assert (tmp_path / "executed").exists()
