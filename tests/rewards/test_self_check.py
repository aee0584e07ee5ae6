"""Every task proves itself, and the proof can fail."""

import random
from dataclasses import replace
from typing import Any

import pytest

from glasshouse.rewards.self_check import validate
from glasshouse.tasks import TASKS, make
from glasshouse.tasks.base import finish
from glasshouse.tasks.sum_digits import SumDigits
from glasshouse.types import Message, Problem, Style

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
def test_every_task_accepts_its_right_answers_and_refuses_its_wrong_ones(name, options):
    proof = validate(make(name, options), count=100)
    assert proof.holds, str(proof)
    assert (proof.problems, proof.right, proof.wrong) == (100, 300, 200)


def test_the_proof_is_a_function_of_its_seed():
    task = make("sum_digits")
    assert validate(task, 20, seed=1) == validate(task, 20, seed=1)
    assert validate(make("sum_digits", {"high": 12}), 20, seed=1).distinct < 20


def test_nothing_is_proved_over_no_problems():
    assert not validate(make("sum_digits"), count=0).holds


class WrongGold(SumDigits):
    def ask(self, numbers: tuple[int, ...]) -> Problem:
        problem = super().ask(numbers)
        return replace(problem, answer=str(int(problem.answer) + 1))


class RightSlip(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        return super().demonstrate(problem, "steps" if mode == "slip" else mode, rng)


class UntaggedSlip(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        text = super().demonstrate(problem, mode, rng)
        return text.replace("[ANSWER]", "so") if mode == "slip" else text


class TalkativeDirect(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        return super().demonstrate(problem, "steps" if mode == "direct" else mode, rng)


class LenientOnly(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        if mode == "direct":
            return f"The answer is {problem.answer}"
        return super().demonstrate(problem, mode, rng)


class Doubtful(SumDigits):
    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        if mode == "direct":
            return finish([], f"{problem.answer} or 1")
        return super().demonstrate(problem, mode, rng)


class OneKey(SumDigits):
    def ask(self, numbers: tuple[int, ...]) -> Problem:
        return replace(super().ask(numbers), key="same")


class Moody(SumDigits):
    moods = 0

    def draw(self, rng: random.Random) -> Problem:
        self.moods += 1
        return self.ask((self.moods, 5))


class PermissiveDirect(SumDigits):
    def messages(self, problem: Problem, style: Style) -> list[Message]:
        return super().messages(problem, Style.COT)


class NoQuestion(SumDigits):
    def messages(self, problem: Problem, style: Style) -> list[Message]:
        return super().messages(self.example(), style)


class UnstatedDecimals(SumDigits):
    def precision(self) -> str:
        return " Round to some decimals."


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (WrongGold, "reading refuses"),
        (RightSlip, "reading accepts"),
        (UntaggedSlip, "No answer can be read"),
        (TalkativeDirect, "Working is shown in"),
        (LenientOnly, "The strict reading refuses"),
        (Doubtful, "The strict reading refuses"),
        (OneKey, "has two answers"),
        (Moody, "drew another problem"),
        (PermissiveDirect, "Steps are not forbidden"),
        (NoQuestion, "does not put the question"),
        (UnstatedDecimals, "precision is not stated"),
    ],
)
def test_a_broken_task_is_caught_with_a_sentence(broken, says):
    proof = validate(broken(), count=20)
    assert not proof.holds
    assert any(says in fault for fault in proof.faults), str(proof)


def test_a_fault_shows_the_offending_completion():
    class Broken(SumDigits):
        def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
            return finish([], "12345")

    assert all(
        "[ANSWER] 12345" in fault for fault in validate(Broken(), 3).faults if "reading" in fault
    )
    assert "12345" in str(validate(Broken(), 3))
