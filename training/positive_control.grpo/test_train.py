from pathlib import Path

from tests.mock_training import train_one_step

from glasshouse.config.loading import load_config
from glasshouse.study.spec import load_study
from glasshouse.tasks.base import make_task

EXPERIMENT = Path(__file__).parent


def test_one_step_gives_partial_rewards_on_arithmetic(tmp_path: Path) -> None:
    summary, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"arithmetic"}
    for row in rows:  # 0.8 × exact + 0.2 × closeness: a wrong answer earns -1 and -1 to 0.8
        low, high = (1, 1) if row["correct"] else (-1, -0.64)
        assert low - 1e-9 <= row["reward"] <= high + 1e-9
    assert len({row["reward"] for row in rows}) > 2


def test_checkpoints_data_and_schedule_are_as_the_readme_says() -> None:
    config = load_config([EXPERIMENT / "config.yaml"])
    checkpoints = config.checkpoints
    assert (checkpoints.every, checkpoints.save_above_reward) == (20, 0.3)
    assert checkpoints.save_best
    assert checkpoints.keep == ("first", "previous", "last")
    assert config.data.source == "fresh"
    assert config.learn.lr_schedule == "constant"


def test_the_prompt_forbids_steps() -> None:
    config = load_config([EXPERIMENT / "config.yaml"])
    task = make_task(config.task.name, config.task.options)
    system, question = task.messages(task.example(), config.task.style)
    assert "Do not show steps" in system["content"]
    assert "no steps" in question["content"]


def test_products_are_trained_as_in_their_study() -> None:
    config = load_config([EXPERIMENT / "config.yaml", EXPERIMENT / "products.yaml"])
    study = load_study(EXPERIMENT / "study_products.yaml").run_config("products", seed=0)
    for section in ("model", "steps", "task", "data", "generate", "reward", "learn"):
        assert getattr(config, section) == getattr(study, section), section
    assert list(config.task.schedule) == [0, 4, 8]
    assert config.task.schedule[8] == {}  # from here on, the products that are evaluated
