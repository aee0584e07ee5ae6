"""Every task passes its self-check, and a broken task fails it."""

import random
from dataclasses import replace
from typing import Any

import pytest

from glasshouse.rollout.self_check import check_task
from glasshouse.tasks.base import format_completion
from glasshouse.tasks.catalogue import list_tasks, make_task
from glasshouse.tasks.sum_digits import SumDigits
from glasshouse.types import Message, Problem, Style

TASKS = list_tasks(organisms=False)

OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("arithmetic", {"decimals": 1}),
    ("arithmetic", {"decimals": 2}),
    ("arithmetic", {"steps": (1, 2), "operations": "*/", "operand_high": 12}),
    ("multiplication", {"left_digits": 2}),
    ("multiplication", {"left_digits": 2, "right_digits": 1}),
    ("multiplication", {"left_digits": 1, "right_digits": 3}),
    ("sum_digits", {"count": (1, 2), "low": 0}),
    ("sum_digits", {"count": (1, 1), "low": 0, "high": 9}),
    ("interleave", {"length": (1, 6)}),
    ("interleave", {"length": (1, 3), "high": 12_345}),
    ("interleave", {"length": (1, 1), "high": 1}),
    ("reverse_digits", {"low": 10, "high": 9999}),
]


@pytest.mark.parametrize(("name", "options"), [(n, {}) for n in TASKS] + OTHERS)
def test_every_task_accepts_its_correct_completions_and_rejects_its_wrong_ones(name, options):
    report = check_task(make_task(name, options), count=100)
    assert report.passed, str(report)
    assert (report.problems, report.correct_completions, report.wrong_completions) == (
        100,
        300,
        200,
    )


def test_report_is_a_function_of_the_seed():
    task = make_task("sum_digits")
    assert check_task(task, 20, seed=1) == check_task(task, 20, seed=1)
    assert check_task(make_task("sum_digits", {"high": 12}), 20, seed=1).distinct < 20


def test_a_check_without_problems_does_not_pass():
    assert not check_task(make_task("sum_digits"), count=0).passed


class WrongGold(SumDigits):
    def make_problem(self, numbers: tuple[int, ...]) -> Problem:
        problem = super().make_problem(numbers)
        return replace(problem, gold_answer=str(int(problem.gold_answer) + 1))


class CorrectInjectedError(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        return super().demonstrate(problem, "steps" if mode == "injected_error" else mode, rng)


class UntaggedInjectedError(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        text = super().demonstrate(problem, mode, rng)
        return text.replace("[ANSWER]", "so") if mode == "injected_error" else text


class DirectWithSteps(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        return super().demonstrate(problem, "steps" if mode == "direct" else mode, rng)


class LenientOnly(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        if mode == "direct":
            return f"The answer is {problem.gold_answer}"
        return super().demonstrate(problem, mode, rng)


class TwoAnswers(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        if mode == "direct":
            return format_completion([], f"{problem.gold_answer} or 1")
        return super().demonstrate(problem, mode, rng)


class OneKey(SumDigits):
    def make_problem(self, numbers: tuple[int, ...]) -> Problem:
        return replace(super().make_problem(numbers), key="same")


class Unrepeatable(SumDigits):
    draws = 0

    def draw(self, rng: random.Random) -> Problem:
        self.draws += 1
        return self.make_problem((self.draws, 5))


class PermissiveDirect(SumDigits):
    def messages(self, problem: Problem, style: Style) -> list[Message]:
        return super().messages(problem, Style.COT)


class NoQuestion(SumDigits):
    def messages(self, problem: Problem, style: Style) -> list[Message]:
        return super().messages(self.example(), style)


class UnstatedDecimals(SumDigits):
    def rounding_instruction(self) -> str:
        return " Round to some decimals."


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (WrongGold, "parser rejects"),
        (CorrectInjectedError, "parser accepts"),
        (UntaggedInjectedError, "No answer"),
        (DirectWithSteps, "Steps are present"),
        (LenientOnly, "strict parser rejects"),
        (TwoAnswers, "strict parser rejects"),
        (OneKey, "has two answers"),
        (Unrepeatable, "second draw"),
        (PermissiveDirect, "Steps are not forbidden"),
        (NoQuestion, "lacks the question"),
        (UnstatedDecimals, "decimals is not stated"),
    ],
)
def test_broken_task_fails_with_the_fault(broken, fault):
    report = check_task(broken(), count=20)
    assert not report.passed
    assert any(fault in line for line in report.faults), str(report)


def test_fault_shows_the_completion():
    class Broken(SumDigits):
        def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
            return format_completion([], "12345")

    assert all(
        "[ANSWER] 12345" in fault for fault in check_task(Broken(), 3).faults if "parser" in fault
    )
    assert "12345" in str(check_task(Broken(), 3))
