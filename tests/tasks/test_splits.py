"""Train, validation and test splits by a hash of the key."""

import pytest

from glasshouse import randomness
from glasshouse.tasks.catalogue import list_tasks, make_task
from glasshouse.tasks.splits import SPLIT_PERCENT, Split, assign_split
from glasshouse.types import Problem

TASKS = list_tasks(organisms=False)


def problem(task, key):
    return Problem(task=task, key=key, question="?", gold_answer="1")


def test_split_of_a_problem_never_changes():
    """Hard-coded: if this fails, validation problems of old runs may now be training problems."""
    expected = {
        ("multiplication", "12*345"): "train",
        ("multiplication", "13*345"): "train",
        ("multiplication", "19*345"): "test",
        ("multiplication", "22*345"): "validation",
        ("multiplication", "25*345"): "validation",
        ("sum_digits", "12+45"): "validation",
        ("sum_digits", "13+45"): "train",
        ("sum_digits", "14+45"): "train",
        ("sum_digits", "23+45"): "test",
        ("sum_digits", "24+45"): "test",
        ("sum_digits", "29+45"): "validation",
    }
    for (task, key), split in expected.items():
        assert assign_split(problem(task, key)) is Split(split)


@pytest.mark.parametrize("name", TASKS)
def test_problems_are_split_80_10_10(name):
    task = make_task(name)
    keys = {task.draw(randomness.stream("splits", name, i)).key for i in range(1500)}
    splits = [assign_split(problem(name, key)) for key in keys]
    chi_square = sum(
        (splits.count(split) - len(keys) * percent / 100) ** 2 / (len(keys) * percent / 100)
        for split, percent in SPLIT_PERCENT.items()
    )
    assert chi_square < 14  # 2 degrees of freedom: p = 0.001


def test_split_depends_only_on_task_and_key():
    one = Problem(task="t", key="k", question="?", gold_answer="1")
    other = Problem(task="t", key="k", question="!", gold_answer="2", level="hard", meta={"a": 1})
    assert assign_split(one) is assign_split(other)
    assert len({assign_split(problem("t", str(i))) for i in range(50)}) == 3
