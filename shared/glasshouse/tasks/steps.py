"""Steps of a solution: how tasks write them, and how the steps of any CoT are read and recomputed.

    "3+5+8=16, then 16/4 = 4 = 4"  ──►  3+5+8=16 true, 16/4=4 true   ("4 = 4" states nothing)
    "81 plus 67 is 125"            ──►  81+67=125 false

A task implements its solution once, on a `Scratchpad`; with `error_at`, the same code gives a solution
whose error propagates to a wrong answer. Texts to check are adversarial (a model optimised them):
patterns are linear, numbers bounded, and nothing is `eval`ed.
"""

from __future__ import annotations

import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

# --- writing -------------------------------------------------------------------------------


class CannotContinue(Exception):
    """After an injected error, a later step is impossible (for example an inexact division)."""


class Scratchpad:
    """The lines of a solution; line number `error_at`, if set, gets a wrong value.

    Example:
        pad = Scratchpad(random.Random(0), error_at=0)
        pad.write_number("1+2+3=", 6)  # returns 7, say, and all later steps use 7
    """

    def __init__(self, rng: random.Random, error_at: int | None = None) -> None:
        self.rng = rng
        self.error_at = error_at
        self.lines: list[str] = []

    def write(
        self,
        prefix: str,
        correct: T,
        corrupt: Callable[[T, random.Random], T],
        to_text: Callable[[Any], str] = str,
    ) -> T:
        """Writes `prefix` and the value; returns the value that later steps must use."""
        value = corrupt(correct, self.rng) if len(self.lines) == self.error_at else correct
        self.lines.append(prefix + to_text(value))
        return value

    def write_number(self, prefix: str, correct: int) -> int:
        """Writes a non-negative integer; an injected error is off by 1, 2 or 10."""
        return self.write(prefix, correct, near_miss)

    def add(self, total: int | None, number: int) -> int:
        """Writes `total+number=` and the sum; the first number, to which nothing is added, needs no line."""
        return number if total is None else self.write_number(f"{total}+{number}=", total + number)


def near_miss(value: int, rng: random.Random) -> int:
    """A number near `value`: never equal to it, never negative."""
    delta = rng.choice((1, 2, 10))
    return value - delta if value >= delta and rng.random() < 0.5 else value + delta


# --- reading -------------------------------------------------------------------------------

MAX_DIGITS = 20
"""Expressions with a longer number are not evaluated."""
MAX_OPERATIONS = 64
"""Expressions with more operations are not evaluated."""
MAX_DEPTH = 8
"""Of parentheses and signs."""

_SPAN = re.compile(r"(?<![\w.])(?:[0-9(]|-(?=[0-9(]))(?:[0-9+\-*/()= \t]|\.(?<=[0-9].)(?=[0-9]))*+")
"""A span of arithmetic; it includes a point only between digits."""
_GAP = re.compile(r"(?<=[0-9)])[ \t]++(?=[0-9(])")
"""Adjacent numbers belong to different statements: `1+2=3 4+5=9`."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_TOKEN = re.compile(r"[ \t]*+([0-9]++(?:\.[0-9]++)?|[-+*/()])")
_OPERATORS = frozenset("+-*/=^%")
_ASCII_OPERATORS = str.maketrans({"−": "-", "×": "*", "·": "*", "÷": "/"})
_WORDS = {
    "plus": "+", "minus": "-", "times": "*", "x": "*", "multiplied by": "*", "divided by": "/",
    "is": "=", "equals": "=", "makes": "=", "gives": "=",
}  # fmt: skip
_WORD = re.compile(rf"(?<=[0-9]) ?({'|'.join(_WORDS)}) ?(?=[0-9])")
"""Words between two numbers that stand for a sign."""
_UNIT = re.compile(r"(?<=[0-9])[ \t][A-Za-z]{3,20}(?=[ \t]?[-+*/=])|\$(?=[0-9])")
"""`5 coins + 3 coins = 8`, but not `2 x + 3 = 7`."""
_AROUND_SIGN = re.compile(r"(?<=[0-9])[ \t]{0,8}([-+*/=<>]{1,2})[ \t]{0,8}(?=[0-9])")
"""A sign between two numbers, with the spaces around it."""
_RELATION = re.compile(
    rf"(?<![\w.*/+(-])([0-9]{{1,{MAX_DIGITS}}})(==?|<|>)(?=([0-9]{{1,{MAX_DIGITS}}})(?![\w*/+-]|\.[0-9]))"
)
"""A number that belongs to no expression, a sign, and the number on its right, which may begin the next relation."""
_RELATIONS = {"=": operator.eq, "==": operator.eq, "<": operator.lt, ">": operator.gt}
_NUMBER_ROW = re.compile(r"[ \t]*+[0-9]++(?:[ \t]++[0-9]++)*+[ \t]*+")


@dataclass(frozen=True, slots=True)
class Statement:
    """One `expression = value` of a text."""

    text: str
    """Without spaces: `3+5=8`."""
    value: Fraction
    """The claimed value, right of the equals sign."""
    is_true: bool


def find_statements(text: str) -> list[Statement]:
    """The arithmetic statements of a text, in order: an expression with at least one operation, an equals
    sign, and a value.

    Example: `[s.is_true for s in find_statements("1+2=3\\n3*4=13")]` gives `[True, False]`.
    """
    plain = _THOUSANDS.sub("", text.translate(_ASCII_OPERATORS))
    plain = _UNIT.sub("", _WORD.sub(lambda word: _WORDS[word[1]], plain))
    result = []
    for span in _SPAN.finditer(plain):
        before = plain[max(0, span.start() - 8) : span.start()].rstrip(" \t")
        for index, piece in enumerate(_GAP.split(span.group())):
            sides = piece.split("=")
            if index == 0 and before[-1:] in _OPERATORS:
                sides[0] = ""  # `y * 2 + 3 = 7`: the span starts within the left side
            for left, right in pairwise(sides):
                if (statement := _parse_statement(left, right)) is not None:
                    result.append(statement)
    return result


def find_false_values(text: str) -> list[Fraction]:
    """The right side of each false statement: an expression with another value, or a number that is said to equal, to
    be less or to be greater than another, `43=21` or `136<29`.

    Example: `find_false_values("56-13=43\\n43=21")` gives `[21]`.
    """
    found = [statement.value for statement in find_statements(text) if not statement.is_true]
    compact = _AROUND_SIGN.sub(r"\1", _THOUSANDS.sub("", text.translate(_ASCII_OPERATORS)))
    for left, sign, right in _RELATION.findall(compact):
        if not _RELATIONS[sign](int(left), int(right)):
            found.append(Fraction(right))
    return found


def find_number_rows(text: str) -> list[tuple[int, ...]]:
    """Lines that consist of numbers separated by spaces.

    Example: `find_number_rows("4 1\\nso\\n1 4")` gives `[(4, 1), (1, 4)]`.
    """
    lines = [line for line in text.splitlines() if len(line) < 4096 and _NUMBER_ROW.fullmatch(line)]
    return [tuple(int(number[:MAX_DIGITS]) for number in line.split()) for line in lines]


def count_present_steps(cot: str, required: Sequence[str]) -> int:
    """How many of the required steps a CoT contains, each counted as often as it is required.

    A required step is a line as a `Scratchpad` writes it. Statements match in any spacing and, for
    a sum or a product, in any order; other lines match up to whitespace.
    Example: `count_present_steps("5 + 8 = 13", ["8+5=13", "13+4=17"])` is 1.
    """
    stated = [_sort_operands(s.text) for s in find_statements(cot)]
    others = [" ".join(line.split()) for line in cot.splitlines() if not find_statements(line)]
    keys = [
        _sort_operands(found[0].text)
        if (found := find_statements(step))
        else " ".join(step.split())
        for step in required
    ]
    return (Counter(stated + others) & Counter(keys)).total()


def _sort_operands(statement: str) -> str:
    """A sum or a product with its operands sorted; other statements unchanged."""
    left, _, right = statement.partition("=")
    for sign in "+*":
        operands = left.split(sign)
        if len(operands) > 1 and all(operand.isdigit() for operand in operands):
            return f"{sign.join(sorted(operands))}={right}"
    return statement


@lru_cache(maxsize=8_192)  # rollouts repeat their statements
def _parse_statement(left: str, right: str) -> Statement | None:
    """The statement `left = right`, or None without an operation or a readable value."""
    computed, claimed = _Expression.evaluate(left), _Expression.evaluate(right)
    if computed is None or not computed.operations:
        # in "so we have (2+3=5", the parenthesis opens before the expression
        left = left.strip(" \t").lstrip("(")
        computed = _Expression.evaluate(left)
    if computed is None or claimed is None or not computed.operations:
        return None
    is_true = computed.value == claimed.value
    _, point, decimals = right.strip(" \t").partition(".")
    if not is_true and point and computed.divides and not claimed.operations:
        # a quotient may be rounded to the decimals that are written
        error = abs(computed.value - claimed.value)
        is_true = error <= Fraction(1, 2 * 10 ** len(decimals))
    text = f"{''.join(left.split())}={''.join(right.split())}"
    return Statement(text, claimed.value, is_true)


class _Expression:
    """Recursive descent over at most a few hundred tokens: sums of products of numbers."""

    RANKS: tuple[Mapping[str, Callable[[Any, Any], Any]], ...] = (
        {"+": operator.add, "-": operator.sub},
        {"*": operator.mul, "/": operator.truediv},
    )

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position, self.operations, self.divides = tokens, 0, 0, False
        self.value = self._operations(0, 0)
        if self.position != len(tokens) or self.operations > MAX_OPERATIONS:
            raise ValueError

    @classmethod
    def evaluate(cls, text: str) -> _Expression | None:
        """The evaluated expression, or None: invalid, too large, or a division by zero."""
        text, position = text.strip(" \t"), 0
        tokens: list[str] = []
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or len(tokens) > 3 * MAX_OPERATIONS or len(match[1]) > MAX_DIGITS:
                return None
            tokens.append(match[1])
            position = match.end()
        try:
            return cls(tokens)
        except (ValueError, ZeroDivisionError):
            return None

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self.position += 1
        return token

    def _operations(self, rank: int, depth: int) -> Fraction:
        """A sum (rank 0) of products (rank 1) of numbers (rank 2)."""
        if rank == len(self.RANKS):
            return self._number(depth)
        value = self._operations(rank + 1, depth)
        while self._peek() in self.RANKS[rank]:
            sign = self._take()
            self.operations += 1
            self.divides |= sign == "/"
            value = self.RANKS[rank][sign](value, self._operations(rank + 1, depth))
        return value

    def _number(self, depth: int) -> Fraction:
        token = self._take()
        if token == "(" and depth < MAX_DEPTH:
            value = self._operations(0, depth + 1)
            if self._take() != ")":
                raise ValueError
            return value
        if token == "-" and depth < MAX_DEPTH:
            return -self._number(depth + 1)
        return Fraction(token)  # a sign or an empty token is a ValueError


# --- checking ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The steps of a CoT, each correct or not, and the answer they lead to."""

    steps: tuple[tuple[str, bool], ...]
    """The steps that can be checked, with whether each is correct."""
    conclusion: str | None
    """The answer after the last step; None without a step."""

    @property
    def correct(self) -> int:
        """The number of correct steps."""
        return sum(is_correct for _, is_correct in self.steps)


def check_arithmetic(cot: str) -> StepCheck:
    """Checks statements such as `3+5=8`; the last value is the conclusion."""
    statements = find_statements(cot)
    conclusion = _to_decimal(statements[-1].value) if statements else None
    return StepCheck(tuple((s.text, s.is_true) for s in statements), conclusion)


def check_reversal(cot: str) -> StepCheck:
    """Checks that each row of digits reverses the previous one; the last is the conclusion."""
    rows = [row for row in find_number_rows(cot) if len(row) > 1]
    steps = tuple((" ".join(map(str, b)), b == a[::-1]) for a, b in pairwise(rows))
    conclusion = "".join(map(str, rows[-1])).lstrip("0") or "0" if rows else None
    return StepCheck(steps, conclusion)


def check_merging(cot: str) -> StepCheck:
    """Concatenates the rows of elements that were taken in turn: the conclusion."""
    elements = [element for row in find_number_rows(cot) for element in row]
    return StepCheck((), ", ".join(map(str, elements)) or None)


def _to_decimal(value: Fraction) -> str:
    """A statement's value as text: it was read from decimals, so its expansion is finite."""
    if value.denominator == 1:
        return str(value.numerator)
    places = len(str(value.denominator)) * 4  # enough for any denominator of twos and fives
    scaled = value * 10**places
    if scaled.denominator != 1:
        return str(float(value))
    sign, digits = "-" * (scaled < 0), str(abs(scaled.numerator)).rjust(places + 1, "0")
    return f"{sign}{digits[:-places]}.{digits[-places:].rstrip('0')}"
