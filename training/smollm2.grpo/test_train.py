from pathlib import Path

import pytest
from tests.mock_training import train_one_step

from glasshouse.config.loading import load_config
from glasshouse.models.packaged import PACKAGED_MODELS
from glasshouse.study.spec import load_study

EXPERIMENT = Path(__file__).parent


def test_one_step_asks_for_one_operation_without_steps(tmp_path: Path) -> None:
    summary, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"arithmetic"}


@pytest.mark.parametrize(
    ("files", "study"),
    [(["config.yaml"], "study.yaml"), (["config.yaml", "gemma3.yaml"], "study_gemma3.yaml")],
)
def test_a_model_is_trained_as_in_its_study(files: list[str], study: str) -> None:
    config = load_config([EXPERIMENT / file for file in files])
    run = load_study(EXPERIMENT / study).run_config("rl", seed=0)
    assert config.model in PACKAGED_MODELS
    sections = ("model", "steps", "task", "data", "generate", "reward", "learn", "checkpoints")
    for section in sections:
        assert getattr(config, section) == getattr(run, section), section


def test_the_control_differs_in_its_rewards_only() -> None:
    for file in ("study.yaml", "study_gemma3.yaml"):
        study = load_study(EXPERIMENT / file)
        rl, shuffled = (study.run_config(arm, seed=0) for arm in ("rl", "shuffled"))
        assert shuffled.reward.shuffle
        assert rl == shuffled.model_copy(update={"reward": rl.reward, "out": rl.out})
