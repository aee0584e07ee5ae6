"""The experiment that trains with parallel generators, as its command line promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("monarch")

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "experiments" / "reinforcement_learning" / "main.py"


def experiment(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


def test_help_names_every_flag() -> None:
    done = experiment("--help")
    assert done.returncode == 0
    for flag in ("task", "num-steps", "num-generators", "eval-samples", "verbose", "model", "seed"):
        assert f"--{flag}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--task", "sum_digit"], "sum_digits"),
        (["--num-generators", "0"], "1 or more"),
        (["--num-steps", "-3"], "1 or more"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(arguments: list[str], word: str) -> None:
    done = experiment(*arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_it_evaluates_trains_and_evaluates_again(tmp_path: Path) -> None:
    given = ["--model", str(ROOT / "models" / "mock"), "--num-steps", "2", "--eval-samples", "4"]
    done = experiment(*given, "--verbose", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (out,) = (tmp_path / "runs").iterdir()
    summary = json.loads((out / "results" / "summary.json").read_text())
    assert summary["algorithm"] == "reinforce"
    assert summary["steps_done"] == 2
    assert {"accuracy", "format"} <= summary["before"].keys() & summary["after"].keys()
