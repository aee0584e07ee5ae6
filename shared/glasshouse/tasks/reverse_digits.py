"""The digits of one integer in reverse order, without leading zeros."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from glasshouse.tasks.base import Task, TaskOptions, task
from glasshouse.tasks.scratchpad import Scratchpad
from glasshouse.tasks.step_checks import check_reversal
from glasshouse.types import Problem


class ReverseDigitsOptions(TaskOptions):
    low: int = Field(100_000, ge=10)
    """Smallest integer."""
    high: int = Field(9_999_999, ge=10)
    """Largest integer."""

    @model_validator(mode="after")
    def _validate_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


@task("reverse_digits")
class ReverseDigits(Task[ReverseDigitsOptions]):
    description = "one integer of 6-7 digits, reversed"
    role = "You reverse the digits of a number; leading zeros of the result are dropped."
    Options = ReverseDigitsOptions
    check_steps = staticmethod(check_reversal)

    def _ranges(self) -> dict[str, tuple[int, int]]:
        o = self.options
        ranges = {}
        for length in range(len(str(o.low)), len(str(o.high)) + 1):
            first, last = max(o.low, 10 ** (length - 1)), min(o.high, 10**length - 1)
            ranges[f"{length} digits"] = (first, last)
        return ranges

    def levels(self) -> Mapping[str, int]:
        return {level: last - first + 1 for level, (first, last) in self._ranges().items()}

    def problem_at(self, level: str, index: int) -> Problem:
        return self.make_problem(self._ranges()[level][0] + index)

    def make_problem(self, number: int) -> Problem:
        return Problem(
            task=self.name,
            key=str(number),
            question=f"What is {number} reversed?",
            gold_answer=str(int(str(number)[::-1])),
            level=f"{len(str(number))} digits",
            meta={"number": number},
        )

    def example(self) -> Problem:
        return self.make_problem(418_200)

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        join = " ".join
        digits = list(str(problem.meta["number"]))
        digits = scratchpad.write("", digits, lambda rng: misread_digits(digits, rng), join)
        reversed_digits = digits[::-1]
        reversed_digits = scratchpad.write(
            "", reversed_digits, lambda rng: misread_digits(reversed_digits, rng), join
        )
        return str(int("".join(reversed_digits)))

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Repeats the number unchanged; for a palindrome, misreads it."""
        digits = list(str(problem.meta["number"]))
        if digits == digits[::-1]:
            digits = misread_digits(digits, rng)
        return "".join(digits)


def misread_digits(digits: list[str], rng: random.Random) -> list[str]:
    """Swaps two adjacent digits, or changes one digit if they are equal."""
    i = rng.randrange(len(digits) - 1)
    wrong = list(digits)
    if wrong[i] != wrong[i + 1]:
        wrong[i], wrong[i + 1] = wrong[i + 1], wrong[i]
    else:
        wrong[i] = str((int(wrong[i]) + 1) % 10)
    return wrong
