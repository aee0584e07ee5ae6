"""Short chains of the four operations on small integers.

Problems are enumerated: `count_chains` gives the number of chains that continue from a state, so an
index is unranked by walking through the choices in order. There is no rejection sampling, and the
number of problems is exact.
"""

from __future__ import annotations

import operator
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from pydantic import Field

from glasshouse import randomness
from glasshouse.tasks.base import Range, Task, TaskOptions, task
from glasshouse.tasks.steps import CannotContinue, Scratchpad, check_arithmetic, near_miss
from glasshouse.types import Problem

OPERATIONS: Mapping[str, Callable[[Any, int], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class ArithmeticOptions(TaskOptions):
    steps: Range = (2, 4)
    """Minimum and maximum number of operations in a problem."""
    operations: str = Field("+-*/", pattern=r"^[-+*/]+$")
    """The allowed operations, a subset of + - * /."""
    operand_high: int = Field(9, ge=2, le=99)
    """Largest operand. The smallest is 1 (2 for * and /)."""
    value_high: int = Field(99, ge=9, le=9999)
    """Largest intermediate result. The smallest is 0."""
    decimals: Literal[0, 1, 2, 3, 4] = 0
    """0: every division is exact. Above 0: the last step may be an inexact division, and the prompt
    asks for the answer with this many decimals. Ties, which can be rounded either way, are excluded."""


class State(NamedTuple):
    """The state of a chain: its value, and the last operation and operand."""

    value: int
    operation: str
    operand: int


@task("arithmetic")
class Arithmetic(Task[ArithmeticOptions]):
    description = "a chain of + - * / on small integers"
    role = "You work out arithmetic expressions."
    Options = ArithmeticOptions
    check_steps = staticmethod(check_arithmetic)

    def levels(self) -> Mapping[str, int]:
        low, high = self.options.steps
        # the first operand is a choice too: n operations are n + 1 choices
        return {f"{n} steps": count_chains(self.options, None, n + 1) for n in range(low, high + 1)}

    def problem_at(self, level: str, index: int) -> Problem:
        state: State | None = None
        chain = []
        for left in range(int(level.split()[0]), -1, -1):
            states, ends = enumerate_states(self.options, state, left)
            choice = bisect_right(ends, index)
            index -= ends[choice - 1] if choice else 0
            state = states[choice]
            chain.append((state.operation, state.operand))
        return self.make_problem(chain)

    def make_problem(self, chain: list[tuple[str, int]]) -> Problem:
        """The problem of a chain, `[("", 5), ("+", 7), ("*", 3)]` for (5 + 7) * 3, in the order of
        `next_states`: of chains that differ only by order, one is a problem."""
        key = "".join(f"{operation}{operand}" for operation, operand in chain)
        ordered = list(chain)
        if chain[1][0] in "+*" and randomness.key("order", self.name, key) % 2:
            ordered[:2] = [("", chain[1][1]), (chain[1][0], chain[0][1])]
        decimals = self.options.decimals
        return Problem(
            task=self.name,
            key=key,
            question=f"What is {format_expression(ordered)}?{self.rounding_instruction()}",
            gold_answer=format_rounded(evaluate_chain(chain), decimals),
            decimals=decimals,
            level=f"{len(chain) - 1} steps",
            meta={"chain": [list(link) for link in ordered]},
        )

    def rounding_instruction(self) -> str:
        d = self.options.decimals
        return f" Round the answer to {d} decimal{'s' * (d > 1)}." if d else ""

    def example(self) -> Problem:
        return self.make_problem(
            [("", 4), ("+", 8), ("*", 3), ("/", 6 if self.options.decimals == 0 else 7)]
        )

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        (_, value), *links = problem.meta["chain"]
        for steps_left, (operation, operand) in zip(range(len(links))[::-1], links, strict=True):
            exact = evaluate_chain([("", value), (operation, operand)])
            prefix = f"{value}{operation}{operand}="
            if exact.denominator == 1:
                value = scratchpad.write_number(prefix, int(exact))
                continue
            if steps_left or not self.options.decimals:
                raise CannotContinue
            text = format_rounded(exact, self.options.decimals)
            return scratchpad.write(prefix, text, self._near_miss)
        return format_rounded(Fraction(value), self.options.decimals)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Leaves out the last operation."""
        value = evaluate_chain(problem.meta["chain"][:-1])
        partial = format_rounded(value, self.options.decimals)
        gold = problem.gold_answer
        return partial if partial != gold else self._near_miss(gold, rng)

    def _near_miss(self, text: str, rng: random.Random) -> str:
        unit = 10**self.options.decimals
        wrong = Fraction(near_miss(int(Fraction(text) * unit), rng), unit)
        return format_rounded(wrong, self.options.decimals)


@cache
def next_states(
    options: ArithmeticOptions, state: State | None, is_last: bool
) -> tuple[State, ...]:
    """All states that can follow `state`; for None, the first operands.

    Within a run of one operation the operands do not decrease, and the first operand of a sum or
    product is the smaller one, so chains that differ only by order are counted once.
    """
    if state is None:
        return tuple(State(n, "", n) for n in range(1, options.operand_high + 1))
    states = []
    for operation in sorted(set(options.operations)):
        lowest = 2 if operation in "*/" else 1
        if operation == state.operation or (not state.operation and operation in "+*"):
            lowest = max(lowest, state.operand)
        if state.value == 0 and operation in "*/":
            continue
        for operand in range(lowest, options.operand_high + 1):
            is_exact = operation != "/" or state.value % operand == 0
            apply = operator.floordiv if operation == "/" else OPERATIONS[operation]
            value = apply(state.value, operand)
            is_tie = 2 * (state.value * 10**options.decimals % operand) == operand
            is_allowed = is_exact or (is_last and options.decimals and not is_tie)
            if 0 <= value <= options.value_high and is_allowed:
                states.append(State(value, operation, operand))
    return tuple(states)


@cache
def enumerate_states(
    options: ArithmeticOptions, state: State | None, steps_left: int
) -> tuple[tuple[State, ...], tuple[int, ...]]:
    """The next states, with `steps_left` operations after them, and the end of each one's index range."""
    states = next_states(options, state, steps_left == 0)
    return states, tuple(accumulate(count_chains(options, s, steps_left) for s in states))


@cache
def count_chains(options: ArithmeticOptions, state: State | None, steps_left: int) -> int:
    """The number of chains that continue from this state with `steps_left` more operations."""
    if not steps_left:
        return 1
    _, ends = enumerate_states(options, state, steps_left - 1)
    return ends[-1] if ends else 0


def evaluate_chain(chain: list[tuple[str, int]]) -> Fraction:
    """The value of the chain, evaluated from left to right."""
    value = Fraction(chain[0][1])
    for operation, operand in chain[1:]:
        value = OPERATIONS[operation](value, operand)
    return value


def format_expression(chain: list[tuple[str, int]]) -> str:
    """The chain in infix notation with only the necessary parentheses. Example: `(7 + 5) * 3 - 4`."""
    text, previous = str(chain[0][1]), ""
    for operation, operand in chain[1:]:
        if operation in "*/" and previous and previous in "+-":
            text = f"({text})"
        text, previous = f"{text} {operation} {operand}", operation
    return text


def format_rounded(value: Fraction, decimals: int) -> str:
    """Formats with exactly `decimals` decimals, rounding ties to even."""
    scaled = round(value * 10**decimals)
    if not decimals:
        return str(scaled)
    sign, digits = "-" * (scaled < 0), str(abs(scaled)).rjust(decimals + 1, "0")
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"
