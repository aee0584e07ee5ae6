"""One integer, read from right to left; zeros that come to stand in front are dropped."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from glasshouse.tasks.base import Task, TaskOptions
from glasshouse.tasks.scratchpad import Working
from glasshouse.types import Problem


class ReverseDigitsOptions(TaskOptions):
    low: int = Field(100_000, ge=10)
    """Smallest integer."""
    high: int = Field(9_999_999, ge=10)
    """Largest integer."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class ReverseDigits(Task[ReverseDigitsOptions]):
    name = "reverse_digits"
    about = "one integer of 6-7 digits, reversed"
    skill = "You reverse the digits of a number; leading zeros of the result are dropped."
    Options = ReverseDigitsOptions

    def _ranges(self) -> dict[str, tuple[int, int]]:
        o = self.options
        ranges = {}
        for length in range(len(str(o.low)), len(str(o.high)) + 1):
            first, last = max(o.low, 10 ** (length - 1)), min(o.high, 10**length - 1)
            ranges[f"{length} digits"] = (first, last)
        return ranges

    def levels(self) -> Mapping[str, int]:
        return {level: last - first + 1 for level, (first, last) in self._ranges().items()}

    def at(self, level: str, index: int) -> Problem:
        return self.ask(self._ranges()[level][0] + index)

    def ask(self, number: int) -> Problem:
        return Problem(
            task=self.name,
            key=str(number),
            question=f"What is {number} reversed?",
            answer=str(int(str(number)[::-1])),
            level=f"{len(str(number))} digits",
            meta={"number": number},
        )

    def example(self) -> Problem:
        return self.ask(418_200)

    def work(self, problem: Problem, working: Working) -> str:
        spaced = " ".join
        digits = list(str(problem.meta["number"]))
        digits = working.write("", digits, lambda rng: misread(digits, rng), spaced)
        turned = digits[::-1]
        turned = working.write("", turned, lambda rng: misread(turned, rng), spaced)
        return str(int("".join(turned)))

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """The number as it stands, or, of a palindrome, a misreading."""
        digits = list(str(problem.meta["number"]))
        if digits == digits[::-1]:
            digits = misread(digits, rng)
        return "".join(digits)


def misread(digits: list[str], rng: random.Random) -> list[str]:
    """Two neighbouring digits in the wrong order, or one digit wrong."""
    i = rng.randrange(len(digits) - 1)
    wrong = list(digits)
    if wrong[i] != wrong[i + 1]:
        wrong[i], wrong[i + 1] = wrong[i + 1], wrong[i]
    else:
        wrong[i] = str((int(wrong[i]) + 1) % 10)
    return wrong
