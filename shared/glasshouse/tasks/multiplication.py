"""Three digits times two: the column method, one digit at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping

from pydantic import Field

from glasshouse.tasks.base import Task, TaskOptions
from glasshouse.tasks.enumeration import mixed_radix, multiset_at, multiset_count
from glasshouse.tasks.scratchpad import Working, off_by
from glasshouse.types import Problem


class MultiplicationOptions(TaskOptions):
    left_digits: int = Field(3, ge=1, le=9)
    """Digits of the first factor."""
    right_digits: int = Field(2, ge=1, le=9)
    """Digits of the second factor."""


class Multiplication(Task[MultiplicationOptions]):
    name = "multiplication"
    about = "a three-digit times a two-digit number"
    skill = "You multiply two whole numbers."
    Options = MultiplicationOptions

    @property
    def _level(self) -> str:
        return f"{self.options.left_digits}x{self.options.right_digits}"

    def levels(self) -> Mapping[str, int]:
        left, right = count_of(self.options.left_digits), count_of(self.options.right_digits)
        return {self._level: multiset_count(left, 2) if left == right else left * right}

    def at(self, level: str, index: int) -> Problem:
        o = self.options
        left, right = count_of(o.left_digits), count_of(o.right_digits)
        a, b = multiset_at(left, 2, index) if left == right else mixed_radix(index, (left, right))
        return self.ask(a + 10 ** (o.left_digits - 1), b + 10 ** (o.right_digits - 1))

    def ask(self, left: int, right: int) -> Problem:
        """Commuted factors are one problem."""
        low, high = sorted((left, right))
        return Problem(
            task=self.name,
            key=f"{low}*{high}",
            question=f"What is {left} * {right}?",
            answer=str(left * right),
            level=f"{len(str(left))}x{len(str(right))}",
            meta={"left": left, "right": right},
        )

    def example(self) -> Problem:
        return self.ask(
            int("273"[: self.options.left_digits].ljust(self.options.left_digits, "4")),
            int("46"[: self.options.right_digits].ljust(self.options.right_digits, "5")),
        )

    def work(self, problem: Problem, working: Working) -> str:
        """Each digit of the right factor times the left one, carries written out; then the sum."""
        left, right = problem.meta["left"], problem.meta["right"]
        total: int | None = None
        for place, digit in enumerate(reversed(str(right))):
            part, carry = 0, 0
            figures = list(reversed(str(left)))
            for i, figure in enumerate(figures):
                more = f"+{carry}" if i else ""
                column = working.number(
                    f"{figure}*{digit}{more}=", int(figure) * int(digit) + carry
                )
                carry = column // 10
                part += (column if i == len(figures) - 1 else column % 10) * 10**i
            part *= 10**place
            working.lines.append(f"{left}*{digit}{'0' * place}={part}")
            total = part if total is None else working.number(f"{total}+{part}=", total + part)
        return str(total)

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """Only the last digit of the right factor; with one digit, the carries are forgotten."""
        left, right = problem.meta["left"], problem.meta["right"]
        product = left * (right % 10)
        if right < 10:
            first, *rest = [int(d) * right for d in str(left)]
            product = int(str(first) + "".join(str(column % 10) for column in rest))
        return str(product if product not in (0, left * right) else off_by(left * right, rng))


def count_of(digits: int) -> int:
    """How many positive integers have this many digits."""
    return 9 * 10 ** (digits - 1)
