"""Closeness, digits in place and relative error of held-out answers."""

from __future__ import annotations

import pytest
from tests.rollout.test_penalties import make_rollout

from glasshouse.measurement.partial_credit import summarize_partial_credit
from glasshouse.tasks.base import make_task
from glasshouse.types import Rollout

GOLD = 12558  # 273 * 46


def answer(text: str) -> Rollout:
    return make_rollout(make_task("multiplication", {}).example(), text)


def test_an_answer_that_is_closer_has_more_credit_and_a_smaller_error() -> None:
    far, near, exact = (
        summarize_partial_credit([answer(f"[ANSWER] {number}")])
        for number in (GOLD * 2, GOLD + 1000, GOLD)
    )
    assert near["closeness"] == pytest.approx(1 / (1 + 10 * 1000 / GOLD))
    assert near["alignment"] == 4 / 5  # 13558
    assert near["median_relative_error"] == pytest.approx(1000 / GOLD)
    assert far["closeness"] < near["closeness"] < exact["closeness"] == exact["alignment"] == 1
    assert far["median_relative_error"] == 1
    assert exact["median_relative_error"] == 0


def test_no_answer_has_no_credit_and_an_infinite_error() -> None:
    silent, exact = answer("I do not know."), answer(f"[ANSWER] {GOLD}")
    results = summarize_partial_credit([silent, exact, exact], "sampled_")
    assert results["sampled_closeness"] == results["sampled_alignment"] == pytest.approx(2 / 3)
    assert results["sampled_median_relative_error"] == 0
    assert summarize_partial_credit([silent])["median_relative_error"] is None


def test_answers_that_are_not_numbers_have_none_of_the_measures() -> None:
    task = make_task("interleave", {})
    rollout = make_rollout(task.example(), f"[ANSWER] {task.example().gold_answer}")
    assert summarize_partial_credit([rollout]) == {}
