"""What every experiment in training/ has in common; every proof that `make proofs` names can be started."""

from __future__ import annotations

from pathlib import Path

import pytest
from proofs.__main__ import PROOFS, main

from glasshouse.config.loading import load_config
from glasshouse.learn.losses import get_algorithm
from glasshouse.tasks.base import make_task

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = sorted(path.parent for path in (ROOT / "training").glob("*/train.py"))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.name)
def test_an_experiment_has_its_files_a_valid_configuration_and_takes_the_mock_assets(
    experiment: Path,
) -> None:
    for name in ("Dockerfile", "README.md", "config.yaml", "requirements.txt", "test_train.py"):
        assert (experiment / name).is_file()
    own = load_config([experiment / "config.yaml"])
    assert own.steps > 0
    assert own.generate.group_size >= get_algorithm(own.learn.algorithm).min_group
    assert make_task(own.task.name, own.task.options).size() != 0
    mock = load_config([experiment / "config.yaml", ROOT / "tests" / "test_config.yaml"])
    assert (mock.model, mock.task, mock.learn) == ("models/mock", own.task, own.learn)
    for split in ("train", "validation"):
        assert (ROOT / "datasets" / "mock" / f"{own.task.name}.{split}.jsonl").is_file()


@pytest.mark.parametrize("name", PROOFS)
def test_the_file_of_a_proof_exists(name: str) -> None:
    for command in PROOFS[name].commands:
        first, module, *_ = [*command.split(), ""]
        file = first if first != "-m" else f"{module.replace('.', '/')}.py"
        assert module in ("pip", "pytest", "glasshouse") or (ROOT / file).is_file()


def test_an_unknown_proof_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resumes"]) == 2
    assert "resumes" in capsys.readouterr().err
