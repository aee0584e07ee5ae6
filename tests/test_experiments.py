"""What every experiment in training/ has in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from glasshouse.config.loading import load_config
from glasshouse.learn.losses import get_algorithm
from glasshouse.tasks.base import make_task

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = sorted(path.parent for path in (ROOT / "training").glob("*/train.py"))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.name)
def test_the_configuration_is_valid_and_takes_the_mock_assets(experiment: Path) -> None:
    own = load_config([experiment / "config.yaml"])
    assert own.steps > 0
    assert own.generate.group_size >= get_algorithm(own.learn.algorithm).min_group
    assert make_task(own.task.name, own.task.options).size() != 0

    mock = load_config([experiment / "config.yaml", ROOT / "tests" / "test_config.yaml"])
    assert mock.model == "models/mock"
    assert mock.task == own.task
    assert mock.learn == own.learn
    for split in ("train", "validation"):
        assert (ROOT / "datasets" / "mock" / f"{own.task.name}.{split}.jsonl").is_file()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.name)
def test_an_experiment_has_the_files_that_make_needs(experiment: Path) -> None:
    for name in ("Dockerfile", "README.md", "config.yaml", "requirements.txt", "test_train.py"):
        assert (experiment / name).is_file()
