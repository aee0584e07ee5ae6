"""Short chains of the four operations on small integers.

Problems are numbered: `ways` says how many chains go on from a state, so that an index is
unranked by walking the choices in order. No chain is drawn by trial and error, and the size of
the space is exact.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from itertools import accumulate, groupby
from typing import Literal, NamedTuple

from pydantic import Field

from glasshouse import randomness
from glasshouse.tasks.base import Range, Task, TaskOptions
from glasshouse.tasks.scratchpad import Stuck, Working, off_by
from glasshouse.types import Problem


class ArithmeticOptions(TaskOptions):
    steps: Range = (2, 4)
    """Fewest and most operations in a problem."""
    operations: str = Field("+-*/", pattern=r"^[-+*/]+$")
    """Which of + - * / may occur."""
    operand_high: int = Field(9, ge=2, le=99)
    """Operands are 1 to this (2 to this for * and /)."""
    value_high: int = Field(99, ge=9, le=9999)
    """No intermediate result is larger, and none is negative."""
    decimals: Literal[0, 1, 2, 3, 4] = 0
    """0: every division is exact. More: the last step may be an inexact division, and the answer
    is asked for with this many decimals. None is a tie, which people round either way."""


class State(NamedTuple):
    """Where a chain stands: its value, and the operation and operand that led there."""

    value: int
    operation: str
    operand: int


class Arithmetic(Task[ArithmeticOptions]):
    name = "arithmetic"
    about = "a chain of + - * / on small integers"
    skill = "You work out arithmetic expressions."
    Options = ArithmeticOptions

    def levels(self) -> Mapping[str, int]:
        few, many = self.options.steps
        # the first operand is a choice like the others: n operations are n + 1 choices
        return {f"{n} steps": ways(self.options, None, n + 1) for n in range(few, many + 1)}

    def at(self, level: str, index: int) -> Problem:
        state: State | None = None
        chain = []
        for left in range(int(level.split()[0]), -1, -1):
            states, ends = numbered(self.options, state, left)
            place = bisect_right(ends, index)
            index -= ends[place - 1] if place else 0
            state = states[place]
            chain.append((state.operation, state.operand))
        return self.ask(chain)

    def ask(self, chain: list[tuple[str, int]]) -> Problem:
        """`chain` is `[("", 7), ("+", 5), ("*", 3)]` for (7 + 5) * 3."""
        key = "".join(f"{operation}{operand}" for operation, operand in canonical(chain))
        shown = list(chain)
        if chain[1][0] in "+*" and randomness.key("order", self.name, key) % 2:
            shown[:2] = [("", chain[1][1]), (chain[1][0], chain[0][1])]
        decimals = self.options.decimals
        return Problem(
            task=self.name,
            key=key,
            question=f"What is {expression(shown)}?{self.precision()}",
            answer=rounded(result(chain), decimals),
            decimals=decimals,
            level=f"{len(chain) - 1} steps",
            meta={"chain": [list(link) for link in shown]},
        )

    def precision(self) -> str:
        d = self.options.decimals
        return f" Round the answer to {d} decimal{'s' * (d > 1)}." if d else ""

    def example(self) -> Problem:
        return self.ask(
            [("", 4), ("+", 8), ("*", 3), ("/", 6 if self.options.decimals == 0 else 7)]
        )

    def work(self, problem: Problem, working: Working) -> str:
        (_, value), *links = problem.meta["chain"]
        for left, (operation, operand) in zip(range(len(links))[::-1], links, strict=True):
            exact = result([("", value), (operation, operand)])
            before = f"{value}{operation}{operand}="
            if exact.denominator == 1:
                value = working.number(before, int(exact))
                continue
            if left or not self.options.decimals:
                raise Stuck
            text = rounded(exact, self.options.decimals)
            return working.write(before, text, lambda rng, e=exact: self._near(e, rng))  # type: ignore[misc]
        return rounded(Fraction(value), self.options.decimals)

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """The last operation is overlooked."""
        partial = rounded(
            result([tuple(link) for link in problem.meta["chain"][:-1]]), self.options.decimals
        )
        return partial if partial != problem.answer else self._near(Fraction(problem.answer), rng)

    def _near(self, value: Fraction, rng: random.Random) -> str:
        unit = 10**self.options.decimals
        return rounded(Fraction(off_by(round(value * unit), rng), unit), self.options.decimals)


@cache
def onward(options: ArithmeticOptions, state: State | None, last: bool) -> tuple[State, ...]:
    """Every next state; of no state, the first operands. In a run of one operation the operands
    rise, and the first of a sum or product is the smaller one: so chains that differ only by
    order are counted once."""
    if state is None:
        return tuple(State(n, "", n) for n in range(1, options.operand_high + 1))
    found = []
    for operation in sorted(set(options.operations)):
        lowest = 2 if operation in "*/" else 1
        if operation == state.operation or (not state.operation and operation in "+*"):
            lowest = max(lowest, state.operand)
        if state.value == 0 and operation in "*/":
            continue
        for operand in range(lowest, options.operand_high + 1):
            value, exact = applied(state.value, operation, operand)
            tie = 2 * (state.value * 10**options.decimals % operand) == operand
            asked = exact or (last and options.decimals and not tie)
            if 0 <= value <= options.value_high and asked:
                found.append(State(value, operation, operand))
    return tuple(found)


@cache
def numbered(
    options: ArithmeticOptions, state: State | None, left: int
) -> tuple[tuple[State, ...], tuple[int, ...]]:
    """The next states, `left` operations before the end, and where each one's indices end."""
    states = onward(options, state, left == 0)
    return states, tuple(accumulate(ways(options, s, left) for s in states))


@cache
def ways(options: ArithmeticOptions, state: State | None, left: int) -> int:
    """How many chains go on from this state with `left` more operations."""
    if not left:
        return 1
    _, ends = numbered(options, state, left - 1)
    return ends[-1] if ends else 0


def applied(value: int, operation: str, operand: int) -> tuple[int, bool]:
    """The whole part of the result, and whether that is all of it."""
    match operation:
        case "+":
            return value + operand, True
        case "-":
            return value - operand, True
        case "*":
            return value * operand, True
        case _:
            return value // operand, value % operand == 0


def result(chain: list[tuple[str, int]]) -> Fraction:
    """The chain's value, from left to right."""
    value = Fraction(chain[0][1])
    for operation, operand in chain[1:]:
        match operation:
            case "+":
                value += operand
            case "-":
                value -= operand
            case "*":
                value *= operand
            case "/":
                value /= operand
    return value


def canonical(chain: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Each run of one operation in rising order, the first operand of a sum or product included.

    Example: 7 + 5 + 6 becomes 5 + 6 + 7.
    """
    (_, first), *links = chain
    opening = links[0][0] if links and links[0][0] in "+*" else ""
    runs = groupby([(opening, first), *links], key=lambda link: link[0])
    ordered = [link for _, run in runs for link in sorted(run)]
    return [("", ordered[0][1]), *ordered[1:]]


def expression(chain: list[tuple[str, int]]) -> str:
    """As people write it, with only the parentheses it needs. Example: `(7 + 5) * 3 - 4`."""
    text, previous = str(chain[0][1]), ""
    for operation, operand in chain[1:]:
        if operation in "*/" and previous and previous in "+-":
            text = f"({text})"
        text, previous = f"{text} {operation} {operand}", operation
    return text


def rounded(value: Fraction, decimals: int) -> str:
    """Exactly this many decimals, ties to even."""
    scaled = round(value * 10**decimals)
    if not decimals:
        return str(scaled)
    sign, digits = "-" * (scaled < 0), str(abs(scaled)).rjust(decimals + 1, "0")
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"
