"""Tests experiments on mock assets: each one's train.py, with tests/test_config.yaml merged over its config.

    python tests/run_test.py example.rl
    python tests/run_test.py --brief example.rl digits.reinforce     # print output only on failure

Each experiment is trained twice, into two directories; the second run must give the same bits. Then
its own test_train.py runs. Exits with 0 if everything passes, with 2 for an unknown experiment.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ROOT / "training"


def main(argv: list[str]) -> int:
    brief = "--brief" in argv
    selected = [name for name in argv if name != "--brief"]
    names = sorted(p.name for p in TRAINING.iterdir() if (p / "train.py").is_file())
    unknown = [name for name in selected if name not in names]
    if unknown or not selected:
        problem = f'There is no experiment "{unknown[0]}"' if unknown else "Name an experiment"
        print(f"error: {problem}. Experiments: {', '.join(names)}.", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    for name in selected:
        check_experiment(TRAINING / name, brief)
    return 0


def check_experiment(experiment: Path, brief: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="glasshouse-test-") as folder:
        runs = [Path(folder) / name for name in ("first", "second")]
        for run in runs:
            with captured(brief):
                run_train_script(experiment / "train.py", run)
        check_run_directory(runs[0])
        check_equal(*runs)
    with captured(brief):
        # pytest marks its plugins for rewriting, and the training has imported some of them before
        ignored = "ignore::pytest.PytestAssertRewriteWarning"
        code = pytest.main(["-q", "-W", ignored, str(experiment / "test_train.py")])
        if code:
            raise SystemExit(int(code))
    print(
        f"{experiment.name}: trained twice on mock assets, bitwise equal; the checkpoint opens in "
        "transformers; test_train.py passed",
        flush=True,
    )


def run_train_script(script: Path, out: Path) -> None:
    """Run the script as `python train.py` does, in this process: importing torch again takes longer
    than the training."""
    arguments, sys.argv = sys.argv, [
        str(script), "--quiet", "--config", str(ROOT / "tests" / "test_config.yaml"), f"out={out}",
    ]  # fmt: skip
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = arguments


@contextmanager
def captured(brief: bool) -> Iterator[None]:
    """With `brief`, hold the output back and print it only if something fails."""
    if not brief:
        yield
        return
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            yield
    except BaseException:
        print(output.getvalue(), file=sys.stderr)
        raise


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
            {**json.loads(line), "timing": None, "rollout_log_bytes": None, "check": None}
            for line in (run / "results" / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (first, second)
    ]
    assert metrics[0] == metrics[1], "the metrics of two runs differ"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
