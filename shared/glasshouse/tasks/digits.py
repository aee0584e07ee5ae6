"""Tasks on digits: their sum, their reversal, multiplication by the column method, two lists interleaved.

Easy with steps and hard without. The digits of a question are those of its operands, so an organism can
wrap the first three and mask a digit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from pydantic import Field, model_validator

from glasshouse import randomness
from glasshouse.tasks.base import Range, Task, TaskOptions, task
from glasshouse.tasks.steps import (
    Scratchpad,
    check_arithmetic,
    check_merging,
    check_reversal,
    near_miss,
)
from glasshouse.tasks.streams import mixed_radix, multiset_at, multiset_count
from glasshouse.types import AnswerKind, Problem


def _check_order(options: Any) -> Any:
    if options.low > options.high:
        raise ValueError(f"low ({options.low}) is above high ({options.high})")
    return options


class SumDigitsOptions(TaskOptions):
    count: Range = (2, 4)
    """Minimum and maximum number of integers in a problem."""
    low: int = Field(10, ge=0)
    """Smallest integer."""
    high: int = Field(999, ge=0)
    """Largest integer."""

    _order = model_validator(mode="after")(_check_order)


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
        o = self.options
        chosen = multiset_at(o.high - o.low + 1, int(level.split()[0]), index)
        return self.make_problem(tuple(o.low + n for n in chosen))

    def make_problem(self, numbers: tuple[int, ...]) -> Problem:
        """Lists of the same numbers in any order are the same problem."""
        ordered = sorted(numbers)
        key = "+".join(map(str, ordered))
        randomness.stream("order", self.name, key).shuffle(ordered)
        return Problem(
            task=self.name,
            key=key,
            question=f"What is the total digit sum of {ordered}?",
            gold_answer=str(sum(map(digit_sum, numbers))),
            level=f"{len(numbers)} numbers",
            meta={"numbers": ordered},
        )

    def example(self) -> Problem:
        return self.make_problem((58, 301))

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        total: int | None = None
        for number in problem.meta["numbers"]:
            prefix = "+".join(str(number)) + "="
            total = scratchpad.add(total, scratchpad.write_number(prefix, digit_sum(number)))
        return str(total)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Leaves out the last number."""
        *counted, last = problem.meta["numbers"]
        if not counted or digit_sum(last) == 0:
            return str(near_miss(int(problem.gold_answer), rng))
        return str(sum(map(digit_sum, counted)))


def digit_sum(number: int) -> int:
    return sum(map(int, str(number)))


class ReverseDigitsOptions(TaskOptions):
    low: int = Field(100_000, ge=10)
    """Smallest integer."""
    high: int = Field(9_999_999, ge=10)
    """Largest integer."""

    _order = model_validator(mode="after")(_check_order)


@task("reverse_digits")
class ReverseDigits(Task[ReverseDigitsOptions]):
    description = "one integer of 6-7 digits, reversed"
    role = "You reverse the digits of a number; leading zeros of the result are dropped."
    Options = ReverseDigitsOptions
    check_steps = staticmethod(check_reversal)

    def levels(self) -> Mapping[str, int]:
        o = self.options
        lengths = range(len(str(o.low)), len(str(o.high)) + 1)
        return {f"{n} digits": min(o.high, 10**n - 1) - self._first(n) + 1 for n in lengths}

    def problem_at(self, level: str, index: int) -> Problem:
        return self.make_problem(self._first(int(level.split()[0])) + index)

    def _first(self, length: int) -> int:
        """The smallest integer with this many digits."""
        return max(self.options.low, 10 ** (length - 1))

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
        digits = list(str(problem.meta["number"]))
        digits = scratchpad.write("", digits, misread_digits, " ".join)
        digits = scratchpad.write("", digits[::-1], misread_digits, " ".join)
        return str(int("".join(digits)))

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Repeats the number unchanged; for a palindrome, misreads it."""
        digits = list(str(problem.meta["number"]))
        return "".join(misread_digits(digits, rng) if digits == digits[::-1] else digits)


def misread_digits(digits: list[str], rng: random.Random) -> list[str]:
    """Swaps two adjacent digits, or changes one digit if they are equal."""
    i = rng.randrange(len(digits) - 1)
    wrong = list(digits)
    if wrong[i] != wrong[i + 1]:
        wrong[i], wrong[i + 1] = wrong[i + 1], wrong[i]
    else:
        wrong[i] = str((int(wrong[i]) + 1) % 10)
    return wrong


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

    def _smallest(self) -> tuple[int, int]:
        """The smallest left and right factor; there are nine times as many of each length."""
        return 10 ** (self.options.left_digits - 1), 10 ** (self.options.right_digits - 1)

    def levels(self) -> Mapping[str, int]:
        left, right = self._smallest()
        size = multiset_count(9 * left, 2) if left == right else 9 * left * 9 * right
        return {f"{self.options.left_digits}x{self.options.right_digits}": size}

    def problem_at(self, level: str, index: int) -> Problem:
        left, right = self._smallest()
        bases = (9 * left, 9 * right)
        a, b = multiset_at(9 * left, 2, index) if left == right else mixed_radix(index, bases)
        return self.make_problem(left + a, right + b)

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
        left, right = self.options.left_digits, self.options.right_digits
        return self.make_problem(
            int("273"[:left].ljust(left, "4")), int("46"[:right].ljust(right, "5"))
        )

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        """Multiplies by each digit of the right factor, with carries, then adds the partial products."""
        left, right = problem.meta["left"], problem.meta["right"]
        total: int | None = None
        for place, digit in enumerate(reversed(str(right))):
            partial, carry = 0, 0
            for i, left_digit in enumerate(reversed(str(left))):
                prefix = f"{left_digit}*{digit}{f'+{carry}' if i else ''}="
                column = scratchpad.write_number(prefix, int(left_digit) * int(digit) + carry)
                carry = column // 10
                partial += column % 10 * 10**i
            partial = (partial + carry * 10 ** len(str(left))) * 10**place
            scratchpad.lines.append(f"{left}*{digit}{'0' * place}={partial}")
            total = scratchpad.add(total, partial)
        return str(total)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Uses only the last digit of the right factor; for a one-digit factor, drops the carries."""
        left, right = problem.meta["left"], problem.meta["right"]
        product = left * (right % 10)
        if right < 10:
            first, *rest = [int(d) * right for d in str(left)]
            product = int(str(first) + "".join(str(column % 10) for column in rest))
        return str(product if product not in (0, left * right) else near_miss(left * right, rng))


class InterleaveOptions(TaskOptions):
    length: Range = (2, 5)
    """Minimum and maximum length of each sequence."""
    high: int = Field(9, ge=1)
    """Largest element. The smallest is 0."""


@task("interleave")
class Interleave(Task[InterleaveOptions]):
    description = "two sequences merged element by element"
    role = (
        "You merge two lists by taking one element from each in turn; "
        "when one list runs out, the rest of the other follows."
    )
    answer_format = "<a, b, c, ...>"
    kind = AnswerKind.SEQUENCE
    Options = InterleaveOptions
    check_steps = staticmethod(check_merging)

    def levels(self) -> Mapping[str, int]:
        low, high = self.options.length
        lengths = range(low, high + 1)
        return {f"{a}+{b}": (self.options.high + 1) ** (a + b) for a in lengths for b in lengths}

    def problem_at(self, level: str, index: int) -> Problem:
        first, second = map(int, level.split("+"))
        elements = mixed_radix(index, [self.options.high + 1] * (first + second))
        return self.make_problem(elements[:first], elements[first:])

    def make_problem(self, first: tuple[int, ...], second: tuple[int, ...]) -> Problem:
        a, b = list(first), list(second)
        merged = [str(e) for pair in zip_longest(a, b) for e in pair if e is not None]
        return Problem(
            task=self.name,
            key=f"{a}|{b}".replace(" ", ""),
            question=f"Interleave {a} and {b}.",
            gold_answer=", ".join(merged),
            answer_kind=self.kind,
            level=f"{len(a)}+{len(b)}",
            meta={"first": a, "second": b},
        )

    def example(self) -> Problem:
        return self.make_problem((4, 1, 6), (0, 7))

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        merged: list[int] = []
        for pair in zip_longest(problem.meta["first"], problem.meta["second"]):
            taken = [e for e in pair if e is not None]
            taken = scratchpad.write("", taken, corrupt_pair, lambda t: " ".join(map(str, t)))
            merged += taken
        return ", ".join(map(str, merged))

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Concatenates the lists; if that is correct by chance, drops the last element."""
        joined = [str(e) for e in problem.meta["first"] + problem.meta["second"]]
        return ", ".join(joined if ", ".join(joined) != problem.gold_answer else joined[:-1])


def corrupt_pair(pair: list[int], rng: random.Random) -> list[int]:
    """Swaps the pair, or changes its first element."""
    if len(pair) == 2 and pair[0] != pair[1]:
        return pair[::-1]
    return [(pair[0] + 1 + rng.randrange(8)) % 10, *pair[1:]]
