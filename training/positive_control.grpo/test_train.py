"""This experiment's own tests: its configuration is valid, and its script trains."""

from pathlib import Path

from glasshouse import config, tasks
from glasshouse.learn import algorithm

HERE = Path(__file__).parent


def test_the_configuration_describes_a_run() -> None:
    resolved = config.load([HERE / "config.yaml"])
    assert resolved.steps > 0
    assert algorithm(resolved.learn.algorithm).min_group <= resolved.generate.group_size
    assert tasks.make(resolved.task.name, resolved.task.options).size() != 0


def test_the_test_configuration_lays_over_it() -> None:
    laid_over = config.load([HERE / "config.yaml", HERE.parents[1] / "tests" / "test_config.yaml"])
    own = config.load([HERE / "config.yaml"])
    assert laid_over.model == "models/mock"
    assert laid_over.task.name == own.task.name
    assert laid_over.learn.algorithm == own.learn.algorithm


def test_the_notebooks_rules_are_its_configuration() -> None:
    own = config.load([HERE / "config.yaml"])
    assert (
        own.checkpoints.every,
        own.checkpoints.save_above_reward,
        own.checkpoints.save_best,
    ) == (20, 0.3, True)
    assert own.checkpoints.keep == ("first", "previous", "last")
    assert own.data.source == "fresh"
    assert own.learn.lr_schedule == "constant"
    assert own.task.style.value == "direct"


def test_without_steps_the_prompt_forbids_them() -> None:
    own = config.load([HERE / "config.yaml"])
    task = tasks.make(own.task.name, own.task.options)
    system, question = task.messages(task.example(), own.task.style)
    assert "Do not show steps" in system["content"]
    assert "no steps" in question["content"]
