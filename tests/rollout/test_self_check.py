"""Every task passes its self-check, and a broken task fails it."""

import random
from dataclasses import replace
from typing import Any

import pytest

from glasshouse.rollout.self_check import check_task
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.digits import SumDigits
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
    assert (report.correct_completions, report.wrong_completions) == (300, 200)


def test_report_is_a_function_of_the_seed_and_needs_problems():
    task = make_task("sum_digits")
    assert check_task(task, 20, seed=1) == check_task(task, 20, seed=1)
    assert check_task(make_task("sum_digits", {"high": 12}), 20, seed=1).distinct < 20
    assert not check_task(task, count=0).passed


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
        (OneKey, "has two answers"),
        (Unrepeatable, "second draw"),
        (PermissiveDirect, "Steps are not forbidden"),
        (NoQuestion, "lacks the question"),
        (UnstatedDecimals, "decimals is not stated"),
    ],
)
def test_broken_problems_and_prompts_are_faults(broken, fault):
    report = check_task(broken(), count=20)
    assert not report.passed
    assert any(fault in line for line in report.faults), str(report)


@pytest.mark.parametrize(
    ("mode", "broken_text", "fault"),
    [
        ("steps", "[ANSWER] 12345", "parser rejects"),
        ("injected_error", "1+2=3\n[ANSWER] {answer}", "parser accepts"),
        ("injected_error", "1+2=4\nso 4", "No answer"),
        ("direct", "1+2=3\n[ANSWER] {answer}", "Steps are present"),
        ("direct", "The answer is {answer}", "strict parser rejects"),
        ("direct", "[ANSWER] {answer} or 1", "strict parser rejects"),
    ],
)
def test_a_broken_demonstration_is_a_fault_that_shows_it(mode, broken_text, fault):
    class Broken(SumDigits):
        def demonstrate(self, problem: Problem, asked: str, rng: random.Random) -> str:
            if asked == mode:
                return broken_text.format(answer=problem.gold_answer)
            return super().demonstrate(problem, asked, rng)

    report = check_task(Broken(), count=20)
    assert not report.passed
    shown = [line for line in report.faults if fault in line]
    assert shown, str(report)
    assert broken_text.partition("{")[0].encode("unicode_escape").decode() in shown[0]
