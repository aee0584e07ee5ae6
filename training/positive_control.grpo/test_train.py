import runpy
from pathlib import Path

import pytest
from tests.mock_training import train_one_step

from glasshouse.config.loading import load_config
from glasshouse.study.spec import load_study
from glasshouse.tasks.base import make_task
from glasshouse.training.recipes import load_recipe

EXPERIMENT = Path(__file__).parent
CURVE = runpy.run_path(str(EXPERIMENT / "curve.py"))


def test_one_step_gives_partial_rewards_on_products(tmp_path: Path) -> None:
    summary, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"multiplication"}
    for row in rows:  # half is exact; a wrong answer earns -1 of it, and -1 to 0.8 of the rest
        low, high = (1, 1) if row["correct"] else (-1, -0.1)
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


def test_products_are_the_default_and_are_trained_as_in_their_study() -> None:
    config = load_config([EXPERIMENT / "config.yaml"])
    study = load_study(EXPERIMENT / "study_products.yaml").run_config("products", seed=0)
    assert config.task.name == "multiplication"
    for section in ("model", "steps", "task", "data", "generate", "reward", "learn"):
        assert getattr(config, section) == getattr(study, section), section


@pytest.mark.parametrize("style", ["direct", "cot"])
def test_chains_of_four_operations_are_one_override_away(style: str) -> None:
    files = [EXPERIMENT / "config.yaml", EXPERIMENT / "arithmetic.yaml"]
    config = load_config(files, ["task.options.steps=[4,4]", f"task.style={style}"])
    study = load_study(EXPERIMENT / "study.yaml").run_config("arithmetic", seed=0)
    assert list(make_task(config.task.name, config.task.options).levels()) == ["4 steps"]
    for section in ("model", "steps", "data", "generate", "reward", "learn"):
        assert getattr(config, section) == getattr(study, section), section


def test_the_curve_trains_three_sizes_that_the_kernel_computes_on_correct_products_only() -> None:
    recipe = load_recipe("positive-control-products")
    counts = []
    for size in CURVE["SIZES"]:
        resized = CURVE["resize"](recipe, size)
        modes = [entry.modes for phase in resized.phases for entry in phase.mixture]
        assert all(mode.get("guess", 0) == 0 for mode in modes)
        assert all(width % 16 == 0 for width in (resized.hidden_size, resized.intermediate_size))
        width, depth = resized.hidden_size, resized.num_layers
        counts.append(depth * (4 * width**2 + 3 * width * resized.intermediate_size))
    assert counts == sorted(counts)
    assert counts[0] > 1_000_000
    assert 5_000_000 < counts[-1] < 9_000_000
