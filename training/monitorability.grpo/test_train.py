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
