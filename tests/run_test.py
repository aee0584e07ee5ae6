"""Tests one experiment on mock assets: its train.py with tests/test_config.yaml over its config.yaml.

    python tests/run_test.py example.rl
    python tests/run_test.py --brief example.rl      # print output only if something fails

Trains twice, into two directories: both runs must be bitwise equal. Then runs the experiment's
test_train.py. Exit code 0 if everything passes, 2 for an unknown experiment.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ROOT / "training"


def main(argv: list[str]) -> int:
    brief = "--brief" in argv
    names = [argument for argument in argv if argument != "--brief"]
    known = sorted(path.parent.name for path in TRAINING.glob("*/train.py"))
    if len(names) != 1 or names[0] not in known:
        problem = f'There is no experiment "{names[0]}"' if names else "Name an experiment"
        print(f"error: {problem}; there are: {', '.join(known)}.", file=sys.stderr)
        return 2
    experiment = TRAINING / names[0]
    with tempfile.TemporaryDirectory(prefix="glasshouse-test-") as scratch:
        runs = [Path(scratch) / name for name in ("first", "second")]
        for run in runs:
            train(experiment, run, brief)
        check_run_directory(runs[0])
        check_equal(*runs)
    print(
        f"{names[0]}: two runs on mock assets are bitwise equal; checkpoint loads in transformers"
    )
    run_own_tests(experiment, brief)
    return 0


def train(experiment: Path, out: Path, brief: bool) -> None:
    files = ["--config", str(ROOT / "tests" / "test_config.yaml")]
    command = [sys.executable, str(experiment / "train.py"), *files, f"out={out}"]
    process = subprocess.run(command, cwd=ROOT, capture_output=brief, text=True, check=False)
    if process.returncode:
        print(process.stdout or "", process.stderr or "", file=sys.stderr)
        raise SystemExit(process.returncode)


def run_own_tests(experiment: Path, brief: bool) -> None:
    """Run test_train.py in this process, which has already imported torch."""
    output = io.StringIO()
    with redirect_stdout(output if brief else sys.stdout):
        code = pytest.main(["-q", str(experiment / "test_train.py")])
    if code:
        print(output.getvalue(), file=sys.stderr)
        raise SystemExit(int(code))


def check_run_directory(run: Path) -> None:
    """The run directory holds a summary, metrics per step, and a checkpoint that transformers loads."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    summary = json.loads((run / "results" / "summary.json").read_text())
    assert summary["steps_done"] == summary["steps"] == 2, summary
    assert 0 <= summary["after"]["accuracy_low"] <= summary["after"]["accuracy"], summary
    metrics = (run / "results" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2, f"{len(metrics)} lines of metrics for 2 steps"
    AutoModelForCausalLM.from_pretrained(summary["checkpoint"])


def check_equal(first: Path, second: Path) -> None:
    """The weights are equal byte for byte, and the metrics except for times."""
    weights = [
        next(run.glob("checkpoints/step-*")) / "model.safetensors" for run in (first, second)
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "the weights of two runs differ"
    metrics = [
        [
            {**json.loads(line), "timing": None, "rollout_log_bytes": None}
            for line in (run / "results" / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (first, second)
    ]
    assert metrics[0] == metrics[1], "the metrics of two runs differ"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
