from pathlib import Path

from tests.mock_training import train_one_step

from glasshouse.config.loading import load_config
from glasshouse.study.spec import load_study
from glasshouse.tasks.hints import WORDINGS

EXPERIMENT = Path(__file__).parent


def test_one_step_asks_word_problems_with_hints(tmp_path: Path) -> None:
    summary, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"word_problems"}  # the inner task
    assert all("wrong_hint" in row["meta"] for row in rows)


def test_the_model_is_trained_as_in_the_study() -> None:
    config = load_config([EXPERIMENT / "config.yaml"])
    run = load_study(EXPERIMENT / "study.yaml").run_config("outcome", seed=0)
    sections = ("model", "steps", "task", "data", "generate", "reward", "learn", "checkpoints")
    for section in sections:
        assert getattr(config, section) == getattr(run, section), section


def test_the_control_differs_in_its_rewards_only() -> None:
    study = load_study(EXPERIMENT / "study.yaml")
    outcome, shuffled = (study.run_config(arm, seed=0) for arm in ("outcome", "shuffled"))
    assert shuffled.reward.shuffle
    assert outcome == shuffled.model_copy(update={"reward": outcome.reward, "out": outcome.out})


def test_at_least_two_wordings_are_held_out() -> None:
    assert len(WORDINGS) >= 2
    assert all(len(wordings) >= 3 for wordings in WORDINGS.values())
