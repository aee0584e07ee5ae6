"""Multiplication of two integers by the column method."""

from __future__ import annotations

import random
from collections.abc import Mapping

from pydantic import Field

from glasshouse.tasks.base import Task, TaskOptions, task
from glasshouse.tasks.enumeration import mixed_radix, multiset_at, multiset_count
from glasshouse.tasks.scratchpad import Scratchpad, near_miss
from glasshouse.tasks.step_checks import check_arithmetic
from glasshouse.types import Problem


class MultiplicationOptions(TaskOptions):
    left_digits: int = Field(3, ge=1, le=9)
    """Digits of the first factor."""
    right_digits: int = Field(2, ge=1, le=9)
    """Digits of the second factor."""


@task("multiplication")
class Multiplication(Task[MultiplicationOptions]):
    description = "a three-digit times a two-digit number"
    role = "You multiply two whole numbers."
    Options = MultiplicationOptions
    check_steps = staticmethod(check_arithmetic)

    @property
    def _level(self) -> str:
        return f"{self.options.left_digits}x{self.options.right_digits}"

    def levels(self) -> Mapping[str, int]:
        left, right = (
            count_numbers(self.options.left_digits),
            count_numbers(self.options.right_digits),
        )
        return {self._level: multiset_count(left, 2) if left == right else left * right}

    def problem_at(self, level: str, index: int) -> Problem:
        o = self.options
        left, right = count_numbers(o.left_digits), count_numbers(o.right_digits)
        a, b = multiset_at(left, 2, index) if left == right else mixed_radix(index, (left, right))
        return self.make_problem(a + 10 ** (o.left_digits - 1), b + 10 ** (o.right_digits - 1))

    def make_problem(self, left: int, right: int) -> Problem:
        """Swapped factors are the same problem."""
        low, high = sorted((left, right))
        return Problem(
            task=self.name,
            key=f"{low}*{high}",
            question=f"What is {left} * {right}?",
            gold_answer=str(left * right),
            level=f"{len(str(left))}x{len(str(right))}",
            meta={"left": left, "right": right},
        )

    def example(self) -> Problem:
        return self.make_problem(
            int("273"[: self.options.left_digits].ljust(self.options.left_digits, "4")),
            int("46"[: self.options.right_digits].ljust(self.options.right_digits, "5")),
        )

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        """Multiplies by each digit of the right factor, with carries, then adds the partial products."""
        left, right = problem.meta["left"], problem.meta["right"]
        total: int | None = None
        for place, digit in enumerate(reversed(str(right))):
            partial, carry = 0, 0
            left_digits = list(reversed(str(left)))
            for i, left_digit in enumerate(left_digits):
                carried = f"+{carry}" if i else ""
                column = scratchpad.write_number(
                    f"{left_digit}*{digit}{carried}=", int(left_digit) * int(digit) + carry
                )
                carry = column // 10
                partial += (column if i == len(left_digits) - 1 else column % 10) * 10**i
            partial *= 10**place
            scratchpad.lines.append(f"{left}*{digit}{'0' * place}={partial}")
            total = (
                partial
                if total is None
                else scratchpad.write_number(f"{total}+{partial}=", total + partial)
            )
        return str(total)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Uses only the last digit of the right factor; for a one-digit factor, drops the carries."""
        left, right = problem.meta["left"], problem.meta["right"]
        product = left * (right % 10)
        if right < 10:
            first, *rest = [int(d) * right for d in str(left)]
            product = int(str(first) + "".join(str(column % 10) for column in rest))
        return str(product if product not in (0, left * right) else near_miss(left * right, rng))


def count_numbers(digits: int) -> int:
    """The number of positive integers with this many digits."""
    return 9 * 10 ** (digits - 1)
