"""Signals: the last whole step is saved, a second one ends at once; going on gives the same bits."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from proofs.resume import SMALL, differing, train
from tests.train.interrupted import FEW, go_on

from glasshouse.cli import main
from glasshouse.store import checkpoints
from glasshouse.train import interruption
from glasshouse.train.display import Display


class Sends(Display):
    """Sends signals to its own process: while it records step 3, or while it generates step 4."""

    def __init__(self, *signals: int) -> None:
        self.signals = signals

    def step(self, row: dict, groups: list) -> None:
        if row["step"] == 3:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_last_whole_step(
    tmp_path: Path, whole: dict[str, object], number: int
) -> None:
    train(tmp_path / "a", Sends(number), FEW)
    summary = json.loads((tmp_path / "a" / "results" / "summary.json").read_text())
    assert summary["interrupted_at"] == 3
    assert (tmp_path / "a" / "checkpoints" / "step-000003").is_dir()
    assert "resumed at 3" in go_on(tmp_path / "a")
    assert not differing(tmp_path / "a", whole)


def test_a_signal_amid_generation_ends_there(
    tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glasshouse.generate import TorchGenerator

    generate, calls = TorchGenerator._run, iter(range(100))

    def interrupted(self, *given):
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal did not end the generation")
        return generate(self, *given)

    monkeypatch.setattr(TorchGenerator, "_run", interrupted)
    train(tmp_path / "a", None, FEW)
    monkeypatch.undo()
    heard = go_on(tmp_path / "a")
    assert any(h.startswith("resumed at") for h in heard)
    assert not differing(tmp_path / "a", whole)


def test_a_second_signal_ends_at_once_and_the_exit_code_says_so(
    tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "glasshouse.train.display.Quiet", lambda: Sends(signal.SIGINT, signal.SIGINT)
    )
    given = [*SMALL, *FEW, f"out={tmp_path / 'a'}"]
    assert main(["train", "--quiet", *given]) == 131
    monkeypatch.setattr("glasshouse.train.display.Quiet", lambda: Sends(signal.SIGINT))
    assert main(["train", "--quiet", *given]) == 130
    monkeypatch.undo()
    assert main(["train", "--quiet", *given]) == 0
    assert not differing(tmp_path / "a", whole)


def test_what_takes_too_long_is_not_waited_for(
    tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "GRACE", 0.05)
    save = checkpoints.write

    def slow(*given):
        if given[1].step == 3:
            signal.pause()  # until the time is up
        return save(*given)

    monkeypatch.setattr(checkpoints, "write", slow)
    train(tmp_path / "a", Sends(signal.SIGTERM), FEW)
    monkeypatch.undo()
    assert not (tmp_path / "a" / "checkpoints" / "step-000003").exists()
    assert "resumed at 2" in go_on(tmp_path / "a")
    assert not differing(tmp_path / "a", whole)
