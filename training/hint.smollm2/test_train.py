from pathlib import Path

from tests.mock_training import train_one_step

from glasshouse.config.loading import load_config
from glasshouse.study.spec import load_study
from glasshouse.training.recipes import load_recipe

EXPERIMENT = Path(__file__).parent


def test_one_step_asks_word_problems_with_hints(tmp_path: Path) -> None:
    summary, rows = train_one_step(EXPERIMENT, tmp_path / "run")
    assert summary["algorithm"] == "grpo"
    assert {row["task"] for row in rows} == {"word_problems"}  # the inner task
    assert all("wrong_hint" in row["meta"] for row in rows)


def test_a_base_is_trained_as_in_the_study() -> None:
    config = load_config([EXPERIMENT / "config.yaml"])
    run = load_study(EXPERIMENT / "study.yaml").run_config("outcome", seed=0)
    sections = ("model", "steps", "task", "data", "generate", "reward", "learn", "checkpoints")
    for section in sections:
        assert getattr(config, section) == getattr(run, section), section


def test_the_bases_differ_in_the_shares_of_their_modes_only() -> None:
    one, other = (load_recipe(str(EXPERIMENT / f"base-{n}.yaml")) for n in (0, 1))
    assert one.mixture[0].modes != other.mixture[0].modes
    assert one.mixture[0].options == other.mixture[0].options


def test_the_null_arm_penalises_as_much() -> None:
    study = load_study(EXPERIMENT / "study.yaml")
    penalty, permuted = (
        study.run_config(arm, 0).reward.penalties["monitor"] for arm in ("penalty", "permuted")
    )
    assert penalty["weight"] == permuted["weight"]
    assert permuted["permute"]
    assert not penalty.get("permute")
