"""Arithmetic statements in running text: found, worked out exactly, and found true or false.

    "3+5+8=16, then 16/4 = 4 = 4"  ──►  3+5+8=16 true, 16/4=4 true   ("4 = 4" states nothing)

A statement is an expression with at least one operation, an equals sign, and a value. The text is
a model's, under optimisation: patterns are linear, numbers bounded, and nothing is `eval`ed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

DIGITS = 20
"""A number with more digits is not worked with."""
OPERATIONS = 64
"""An expression with more operations is not worked out."""

_RUN = re.compile(r"(?<![\w.])(?:[0-9(]|-(?=[0-9(]))(?:[0-9+\-*/()= \t]|\.(?<=[0-9].)(?=[0-9]))*+")
"""A stretch of arithmetic; a point is part of it only between digits."""
_GAP = re.compile(r"(?<=[0-9)])[ \t]++(?=[0-9(])")
"""Two numbers side by side are two things: `1+2=3 4+5=9`."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_TOKEN = re.compile(r"[ \t]*+([0-9]++(?:\.[0-9]++)?|[-+*/()])")
_JOINED = frozenset("+-*/=^%")
_SAME = str.maketrans({"−": "-", "×": "*", "·": "*", "÷": "/"})
_ROW = re.compile(r"[ \t]*+[0-9]++(?:[ \t]++[0-9]++)*+[ \t]*+")


@dataclass(frozen=True, slots=True)
class Statement:
    """One `expression = value` of a text."""

    text: str
    """As one would write it without spaces: `3+5=8`."""
    value: Fraction
    """What it claims."""
    true: bool


def statements(text: str) -> list[Statement]:
    """The arithmetic statements of a text, in order.

    Example: `[s.true for s in statements("1+2=3\\n3*4=13")]` gives `[True, False]`.
    """
    plain = _THOUSANDS.sub("", text.translate(_SAME))
    found = []
    for run in _RUN.finditer(plain):
        before = plain[max(0, run.start() - 8) : run.start()].rstrip(" \t")
        for number, piece in enumerate(_GAP.split(run.group())):
            sides = piece.split("=")
            if number == 0 and before[-1:] in _JOINED:
                sides[0] = ""  # `y * 2 + 3 = 7`: what is seen of the left side is not all of it
            for left, right in pairwise(sides):
                if (statement := _statement(left, right)) is not None:
                    found.append(statement)
    return found


def rows(text: str) -> list[tuple[int, ...]]:
    """Lines that are nothing but numbers with spaces between: digits spelt out, pairs taken.

    Example: `rows("4 1\\nso\\n1 4")` gives `[(4, 1), (1, 4)]`.
    """
    lines = [line for line in text.splitlines() if len(line) < 4096 and _ROW.fullmatch(line)]
    found = [tuple(number[:DIGITS] for number in line.split()) for line in lines]
    return [tuple(int(number) for number in numbers) for numbers in found]


def present(cot: str, needed: Sequence[str]) -> int:
    """How many of the needed steps a CoT holds, each counted as often as it is needed.

    A needed step is a line as `Working` writes it. Statements match however they are spaced and,
    for a sum or a product, in whatever order; other lines match up to their spaces.
    Example: `present("5 + 8 = 13", ["8+5=13", "13+4=17"])` is 1.
    """
    have = Counter(_canonical(s.text) for s in statements(cot))
    have += Counter(" ".join(line.split()) for line in cot.splitlines() if not statements(line))
    count = 0
    for step in needed:
        stated = statements(step)
        key = _canonical(stated[0].text) if stated else " ".join(step.split())
        if have[key] > 0:
            have[key] -= 1
            count += 1
    return count


def _statement(left: str, right: str) -> Statement | None:
    """`left = right`, or None where that claims nothing: no operation, or nothing readable."""
    left, right = left.strip(" \t"), right.strip(" \t")
    worked = _worked(left)
    if worked is None or not worked.operations:
        # in "so we have (2+3=5", what stands before the expression may leave it unbalanced
        left = left.lstrip("(")
        worked = _worked(left)
    claimed = _worked(right)
    if worked is None or claimed is None or not worked.operations:
        return None
    return Statement(
        f"{_squeezed(left)}={_squeezed(right)}", claimed.value, _equal(worked, claimed, right)
    )


@dataclass(frozen=True, slots=True)
class _Worked:
    value: Fraction
    operations: int
    divides: bool


def _equal(worked: _Worked, claimed: _Worked, right: str) -> bool:
    """Equal exactly; a quotient may also be given rounded to the decimals that are written."""
    if worked.value == claimed.value:
        return True
    _, point, decimals = right.partition(".")
    if not (point and worked.divides and not claimed.operations):
        return False
    return abs(worked.value - claimed.value) <= Fraction(1, 2 * 10 ** len(decimals))


def _worked(expression: str) -> _Worked | None:
    """An expression worked out, or None: unreadable, too large, or a division by zero."""
    tokens: list[str] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or len(tokens) > 3 * OPERATIONS or len(match[1]) > DIGITS:
            return None
        tokens.append(match[1])
        at = match.end()
    try:
        return _Reader(tokens).read()
    except (_Unreadable, ZeroDivisionError):
        return None


class _Unreadable(Exception):
    """Not an expression."""


class _Reader:
    """Recursive descent over at most a few hundred tokens: sums of products of numbers."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at, self.operations, self.divides = tokens, 0, 0, False

    def read(self) -> _Worked:
        value = self._sum(0)
        if self.at != len(self.tokens) or self.operations > OPERATIONS:
            raise _Unreadable
        return _Worked(value, self.operations, self.divides)

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self.at += 1
        return token

    def _sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self._peek() in ("+", "-"):
            self.operations += 1
            value = (
                value + self._product(depth)
                if self._take() == "+"
                else value - self._product(depth)
            )
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._atom(depth)
        while self._peek() in ("*", "/"):
            self.operations += 1
            if self._take() == "*":
                value *= self._atom(depth)
            else:
                self.divides = True
                value /= self._atom(depth)
        return value

    def _atom(self, depth: int) -> Fraction:
        token = self._take()
        if token == "(" and depth < 8:
            value = self._sum(depth + 1)
            if self._take() != ")":
                raise _Unreadable
            return value
        if token == "-" and depth < 8:
            return -self._atom(depth + 1)
        if not token[:1].isdigit():
            raise _Unreadable
        return Fraction(token)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _canonical(statement: str) -> str:
    """A sum or a product with its operands in order; anything else as it stands."""
    left, _, right = statement.partition("=")
    for sign in "+*":
        operands = left.split(sign)
        if len(operands) > 1 and all(operand.isdigit() for operand in operands):
            return f"{sign.join(sorted(operands))}={right}"
    return statement
