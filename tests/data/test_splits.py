"""Train, validation and test by construction."""

import pytest

from glasshouse import randomness
from glasshouse.data import Split, split_of
from glasshouse.data.splits import SHARES
from glasshouse.tasks import TASKS, make
from glasshouse.types import Problem


def problem(task, key):
    return Problem(task=task, key=key, question="?", answer="1")


def test_the_split_of_a_problem_never_changes():
    """Hard-coded: if this fails, validation problems of old runs are training problems now."""
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
        assert split_of(problem(task, key)) is Split(split)


def test_the_shares_are_80_10_and_10():
    assert [SHARES[split] for split in Split] == [80, 10, 10]


@pytest.mark.parametrize("name", TASKS)
def test_four_fifths_are_for_training_and_a_tenth_each_for_the_others(name):
    task = make(name)
    keys = {task.draw(randomness.stream("splits", name, i)).key for i in range(1500)}
    found = [split_of(problem(name, key)) for key in keys]
    chi_square = sum(
        (found.count(split) - len(keys) * share / 100) ** 2 / (len(keys) * share / 100)
        for split, share in SHARES.items()
    )
    assert chi_square < 14  # 2 degrees of freedom: p = 0.001


def test_only_task_and_key_decide():
    one = Problem(task="t", key="k", question="?", answer="1")
    other = Problem(task="t", key="k", question="!", answer="2", level="hard", meta={"a": 1})
    assert split_of(one) is split_of(other)
    assert len({split_of(problem("t", str(i))) for i in range(50)}) == 3


def test_commuted_factors_are_in_one_split():
    task = make("multiplication")
    for a in range(10, 60):
        assert split_of(task.ask(a, 777)) is split_of(task.ask(777, a))
