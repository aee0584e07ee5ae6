"""A signal saves the last complete step, a second one stops at once; both runs can be resumed."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from proofs.resume import SMALL, Result, list_differences, train
from tests.training.short_runs import SHORT, resume

from glasshouse.cli.app import main
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.runs.run_directory import load_metrics
from glasshouse.training import interruption
from glasshouse.training.display import Display

pytestmark = pytest.mark.xdist_group("short runs")  # one worker makes the expensive fixtures once


@pytest.fixture(autouse=True)
def hang_up_is_not_ignored() -> Iterator[None]:
    """Under nohup it is, and a run then ignores it too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class SignalAtStep3(Display):
    """Sends signals to its own process while step 3 is being logged."""

    def __init__(self, *signals: int) -> None:
        self.signals = signals

    def step(self, row: dict[str, Any], groups: list) -> None:
        if row["step"] == 3:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_saves_the_last_complete_step(tmp_path: Path, expected: Result, number: int) -> None:
    run = tmp_path / "run"
    train(run, SignalAtStep3(number), SHORT)
    assert json.loads((run / "results" / "summary.json").read_text())["interrupted_at"] == 3
    assert (run / "checkpoints" / "step-000003").is_dir()
    assert "resumed at 3" in resume(run)
    assert not list_differences(run, expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that used a GPU cannot fork")
def test_closing_the_terminal_saves_the_last_complete_step(tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and from then on printing raises."""
    run = tmp_path / "run"
    process, terminal = pty.fork()
    if not process:
        try:
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # not those of pytest
            os._exit(main(["train", *SMALL, *SHORT, "steps=100000", f"out={run}"]))
        finally:
            os._exit(99)
    while len(load_metrics(run)) < 3:
        os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    summary = json.loads((run / "results" / "summary.json").read_text())
    assert (run / "checkpoints" / f"step-{summary['interrupted_at']:06d}").is_dir()


def test_one_signal_interrupts_once_so_that_saving_can_wait_for_completions() -> None:
    handler = interruption.Interruption()
    with handler:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(interruption.Interrupted):
            handler.check()
        handler.check()  # saving the last step waits for the next step's completions and checks too
        with pytest.raises(interruption.ForcedStop):
            os.kill(os.getpid(), signal.SIGTERM)


def test_signal_during_generation_stops_it(
    tmp_path: Path, expected: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, calls = TorchGenerator.generate, iter(range(100))

    def interrupted(self, *args):
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal did not stop the generation")
        return generate(self, *args)

    monkeypatch.setattr(TorchGenerator, "generate", interrupted)
    train(tmp_path / "run", None, SHORT)
    monkeypatch.undo()
    assert any(message.startswith("resumed at") for message in resume(tmp_path / "run"))
    assert not list_differences(tmp_path / "run", expected)


def test_exit_code_is_131_after_a_second_signal_and_130_after_one(
    tmp_path: Path, expected: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "--quiet", *SMALL, *SHORT, f"out={tmp_path / 'run'}"]
    for signals, code in (((signal.SIGINT, signal.SIGINT), 131), ((signal.SIGINT,), 130)):
        display = SignalAtStep3(*signals)
        monkeypatch.setattr("glasshouse.training.display.Display", lambda display=display: display)
        assert main(command) == code
    monkeypatch.undo()
    assert main(command) == 0
    assert not list_differences(tmp_path / "run", expected)
