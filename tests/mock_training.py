"""One training step of an experiment on mock assets, for its test_train.py."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from glasshouse.config.loading import load_config
from glasshouse.runs.rollout_log import read_rows
from glasshouse.training.run import TrainingRun

ROOT = Path(__file__).resolve().parent.parent


def train_one_step(experiment: Path, out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train with the experiment's configuration and tests/test_config.yaml over it.

    Returns the summary of the run and the training rows of its rollout log.
    """
    files = [experiment / "config.yaml", ROOT / "tests" / "test_config.yaml"]
    with contextlib.chdir(ROOT):  # the mock assets are named relative to it
        config = load_config(files, ["steps=1", "evaluate.problems=0", f"out={out}"])
        summary = TrainingRun(config).train()
    return summary, list(read_rows(out, "train"))
