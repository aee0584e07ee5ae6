"""Runs one experiment on mock assets: its own train.py, with tests/test_config.yaml laid over.

    python tests/run_test.py example.rl
    python tests/run_test.py --brief example.rl      # says little unless something fails

Twice, into two directories: the second run must give the same bits. Then the experiment's own
test_train.py. Prints what it did; exits 0 if all is well, 2 for an unknown experiment.
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
    argv = [a for a in argv if a != "--brief"]
    names = sorted(p.name for p in TRAINING.iterdir() if (p / "train.py").is_file())
    if len(argv) != 1 or argv[0] not in names:
        given = f'There is no experiment "{argv[0]}"' if argv else "Name an experiment"
        print(f"error: {given}; there are: {', '.join(names)}.", file=sys.stderr)
        return 2
    experiment = TRAINING / argv[0]
    with tempfile.TemporaryDirectory(prefix="glasshouse-test-") as scratch:
        runs = [Path(scratch) / name for name in ("first", "second")]
        for run in runs:
            run_quietly(command(experiment, run), brief)
        check(runs[0])
        same(*runs)
    print(
        f"{argv[0]}: trained twice on mock assets, bitwise alike; checkpoint opens in transformers"
    )
    own_tests(experiment, brief)
    return 0


def command(experiment: Path, out: Path) -> list[str]:
    laid_over = ["--config", str(ROOT / "tests" / "test_config.yaml")]
    return [sys.executable, str(experiment / "train.py"), *laid_over, f"out={out}"]


def run_quietly(words: list[str], brief: bool) -> None:
    """Run it from the root; `brief` keeps what it says for the case that it fails."""
    done = subprocess.run(words, cwd=ROOT, capture_output=brief, text=True, check=False)
    if done.returncode:
        print(done.stdout or "", done.stderr or "", file=sys.stderr)
        raise SystemExit(done.returncode)


def own_tests(experiment: Path, brief: bool) -> None:
    """In this process, which has imported torch already."""
    said = io.StringIO()
    with redirect_stdout(said if brief else sys.stdout):
        code = pytest.main(["-q", str(experiment / "test_train.py")])
    if code:
        print(said.getvalue(), file=sys.stderr)
        raise SystemExit(int(code))


def check(run: Path) -> None:
    """The run directory holds what it promises."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    summary = json.loads((run / "results" / "summary.json").read_text())
    assert summary["steps_done"] == summary["steps"] == 2, summary
    assert 0 <= summary["after"]["accuracy_low"] <= summary["after"]["accuracy"], summary
    metrics = (run / "results" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2, f"{len(metrics)} lines of metrics for 2 steps"
    AutoModelForCausalLM.from_pretrained(summary["checkpoint"])


def same(first: Path, second: Path) -> None:
    """Weights byte for byte; metrics but for their times."""
    weights = [
        next(run.glob("checkpoints/step-*")) / "model.safetensors" for run in (first, second)
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes(), "two runs gave different weights"
    rows = [
        [
            {**json.loads(line), "timing": None, "record_bytes": None}
            for line in (run / "results" / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (first, second)
    ]
    assert rows[0] == rows[1], "two runs gave different metrics"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
