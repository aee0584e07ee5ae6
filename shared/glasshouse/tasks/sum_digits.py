"""The total digit sum of a few integers: easy step by step, hard at a glance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from glasshouse.tasks.base import Range, Task, TaskOptions, shuffled
from glasshouse.tasks.enumeration import multiset_at, multiset_count
from glasshouse.tasks.scratchpad import Working, off_by
from glasshouse.types import Problem


class SumDigitsOptions(TaskOptions):
    count: Range = (2, 4)
    """Fewest and most integers in a problem."""
    low: int = Field(10, ge=0)
    """Smallest integer."""
    high: int = Field(999, ge=0)
    """Largest integer."""

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class SumDigits(Task[SumDigitsOptions]):
    name = "sum_digits"
    about = "total digit sum of 2-4 integers"
    skill = "You add up the digits of all the numbers in a list."
    Options = SumDigitsOptions

    def levels(self) -> Mapping[str, int]:
        few, many = self.options.count
        span = self.options.high - self.options.low + 1
        return {f"{n} numbers": multiset_count(span, n) for n in range(few, many + 1)}

    def at(self, level: str, index: int) -> Problem:
        count = int(level.split()[0])
        o = self.options
        chosen = multiset_at(o.high - o.low + 1, count, index)
        return self.ask(tuple(o.low + n for n in chosen))

    def ask(self, numbers: tuple[int, ...]) -> Problem:
        """The order of the numbers is no part of the problem's identity."""
        key = "+".join(map(str, sorted(numbers)))
        shown = shuffled(tuple(sorted(numbers)), self.name, key)
        return Problem(
            task=self.name,
            key=key,
            question=f"What is the total digit sum of {shown}?",
            answer=str(sum(int(d) for n in numbers for d in str(n))),
            level=f"{len(numbers)} numbers",
            meta={"numbers": shown},
        )

    def example(self) -> Problem:
        return self.ask((58, 301))

    def work(self, problem: Problem, working: Working) -> str:
        total: int | None = None
        for number in problem.meta["numbers"]:
            digits = str(number)
            part = working.number("+".join(digits) + "=", sum(map(int, digits)))
            total = part if total is None else working.number(f"{total}+{part}=", total + part)
        return str(total)

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """The last number is overlooked."""
        *counted, last = problem.meta["numbers"]
        if not counted or sum(map(int, str(last))) == 0:
            return str(off_by(int(problem.answer), rng))
        return str(sum(int(d) for n in counted for d in str(n)))
