"""Runs one experiment on mock assets: its own train.py, with tests/test_config.yaml laid over.

    python tests/run_test.py example.rl

Twice, into two directories: the second run must give the same bits. Then the experiment's own
test_train.py. Prints what it did; exits 0 if all is well, 2 for an unknown experiment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ROOT / "training"


def main(argv: list[str]) -> int:
    names = sorted(p.name for p in TRAINING.iterdir() if (p / "train.py").is_file())
    if len(argv) != 1 or argv[0] not in names:
        given = f'There is no experiment "{argv[0]}"' if argv else "Name an experiment"
        print(f"error: {given}; there are: {', '.join(names)}.", file=sys.stderr)
        return 2
    experiment = TRAINING / argv[0]
    with tempfile.TemporaryDirectory(prefix="glasshouse-test-") as scratch:
        runs = [Path(scratch) / name for name in ("first", "second")]
        for run in runs:
            train(experiment, run)
        check(runs[0])
        same(*runs)
    print(
        f"{argv[0]}: trained twice on mock assets, bitwise alike; checkpoint opens in transformers"
    )
    own = [sys.executable, "-m", "pytest", str(experiment / "test_train.py")]
    return subprocess.run(own, cwd=ROOT, check=False).returncode


def train(experiment: Path, out: Path) -> None:
    command = [sys.executable, str(experiment / "train.py")]
    command += ["--config", str(ROOT / "tests" / "test_config.yaml"), f"out={out}"]
    subprocess.run(command, cwd=ROOT, check=True)


def check(run: Path) -> None:
    """The run directory holds what it promises."""
    from transformers import AutoModelForCausalLM

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
