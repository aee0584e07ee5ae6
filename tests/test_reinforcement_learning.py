"""The command line of experiments/reinforcement_learning/main.py."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("monarch")

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "experiments" / "reinforcement_learning" / "main.py"

spec = importlib.util.spec_from_file_location("reinforcement_learning", SCRIPT)
assert spec
assert spec.loader
experiment = importlib.util.module_from_spec(spec)
spec.loader.exec_module(experiment)


def run_in_process(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *arguments])
    try:
        return experiment.main()
    except SystemExit as exit:  # argparse
        return int(exit.code or 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--task", "sum_digit"], "sum_digits"),
        (["--num-generators", "0"], "--num-generators"),
        (["--num-steps", "-3"], "--num-steps"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_a_user_error_exits_with_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    assert run_in_process(monkeypatch, *arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.xdist_group("monarch")
def test_it_evaluates_before_and_after_training(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--verbose", "--model", str(ROOT / "models" / "mock"), "--num-generators", "1"]
    assert run_in_process(monkeypatch, *arguments, "--num-steps", "2", "--eval-samples", "4") == 0
    assert capfd.readouterr().err == ""
    (out,) = (tmp_path / "runs").iterdir()
    summary = json.loads((out / "results" / "summary.json").read_text())
    assert summary["algorithm"] == "reinforce"
    assert summary["steps_done"] == 2
    assert {"accuracy", "format"} <= summary["before"].keys() & summary["after"].keys()
