"""The total digit sum of a few integers: easy with steps, hard without."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from glasshouse.tasks.base import Range, Task, TaskOptions, shuffle_by_key, task
from glasshouse.tasks.enumeration import multiset_at, multiset_count
from glasshouse.tasks.scratchpad import Scratchpad, near_miss
from glasshouse.tasks.step_checks import check_arithmetic
from glasshouse.types import Problem


class SumDigitsOptions(TaskOptions):
    count: Range = (2, 4)
    """Minimum and maximum number of integers in a problem."""
    low: int = Field(10, ge=0)
    """Smallest integer."""
    high: int = Field(999, ge=0)
    """Largest integer."""

    @model_validator(mode="after")
    def _validate_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


@task("sum_digits")
class SumDigits(Task[SumDigitsOptions]):
    description = "total digit sum of 2-4 integers"
    role = "You add up the digits of all the numbers in a list."
    Options = SumDigitsOptions
    check_steps = staticmethod(check_arithmetic)

    def levels(self) -> Mapping[str, int]:
        low, high = self.options.count
        span = self.options.high - self.options.low + 1
        return {f"{n} numbers": multiset_count(span, n) for n in range(low, high + 1)}

    def problem_at(self, level: str, index: int) -> Problem:
        count = int(level.split()[0])
        o = self.options
        chosen = multiset_at(o.high - o.low + 1, count, index)
        return self.make_problem(tuple(o.low + n for n in chosen))

    def make_problem(self, numbers: tuple[int, ...]) -> Problem:
        """Lists of the same numbers in any order are the same problem."""
        key = "+".join(map(str, sorted(numbers)))
        ordered = shuffle_by_key(tuple(sorted(numbers)), self.name, key)
        return Problem(
            task=self.name,
            key=key,
            question=f"What is the total digit sum of {ordered}?",
            gold_answer=str(sum(int(d) for n in numbers for d in str(n))),
            level=f"{len(numbers)} numbers",
            meta={"numbers": ordered},
        )

    def example(self) -> Problem:
        return self.make_problem((58, 301))

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        total: int | None = None
        for number in problem.meta["numbers"]:
            digits = str(number)
            partial = scratchpad.write_number("+".join(digits) + "=", sum(map(int, digits)))
            total = (
                partial
                if total is None
                else scratchpad.write_number(f"{total}+{partial}=", total + partial)
            )
        return str(total)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Leaves out the last number."""
        *counted, last = problem.meta["numbers"]
        if not counted or sum(map(int, str(last))) == 0:
            return str(near_miss(int(problem.gold_answer), rng))
        return str(sum(int(d) for n in counted for d in str(n)))
