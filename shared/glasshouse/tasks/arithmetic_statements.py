"""Finds arithmetic statements in free text and evaluates them exactly.

    "3+5+8=16, then 16/4 = 4 = 4"  ──►  3+5+8=16 true, 16/4=4 true   ("4 = 4" states nothing)

A statement is an expression with at least one operation, an equals sign, and a value. The text is
adversarial (a model optimised it): patterns are linear, numbers bounded, and nothing is `eval`ed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

MAX_DIGITS = 20
"""Expressions with a longer number are not evaluated."""
MAX_OPERATIONS = 64
"""Expressions with more operations are not evaluated."""
MAX_CACHED = 40
"""Characters of a statement that is parsed once only: rollouts repeat the short ones."""

_SPAN = re.compile(r"(?<![\w.])(?:[0-9(]|-(?=[0-9(]))(?:[0-9+\-*/()= \t]|\.(?<=[0-9].)(?=[0-9]))*+")
"""A span of arithmetic; it includes a point only between digits."""
_GAP = re.compile(r"(?<=[0-9)])[ \t]++(?=[0-9(])")
"""Adjacent numbers belong to different statements: `1+2=3 4+5=9`."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_TOKEN = re.compile(r"[ \t]*+([0-9]++(?:\.[0-9]++)?|[-+*/()])")
_OPERATORS = frozenset("+-*/=^%")
_ASCII_OPERATORS = str.maketrans({"−": "-", "×": "*", "·": "*", "÷": "/"})
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
    """The arithmetic statements of a text, in order.

    Example: `[s.is_true for s in find_statements("1+2=3\\n3*4=13")]` gives `[True, False]`.
    """
    plain = _THOUSANDS.sub("", text.translate(_ASCII_OPERATORS))
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
    available = Counter(_canonicalize(s.text) for s in find_statements(cot))
    available += Counter(
        " ".join(line.split()) for line in cot.splitlines() if not find_statements(line)
    )
    count = 0
    for step in required:
        stated = find_statements(step)
        key = _canonicalize(stated[0].text) if stated else " ".join(step.split())
        if available[key] > 0:
            available[key] -= 1
            count += 1
    return count


def _parse_statement(left: str, right: str) -> Statement | None:
    """The statement `left = right`, or None without an operation or a readable value."""
    if len(left) + len(right) > MAX_CACHED:
        return _parse_sides(left, right)
    return _parse_short_sides(left, right)


def _parse_sides(left: str, right: str) -> Statement | None:
    left, right = left.strip(" \t"), right.strip(" \t")
    computed = _evaluate(left)
    if computed is None or not computed.operations:
        # in "so we have (2+3=5", the parenthesis opens before the expression
        left = left.lstrip("(")
        computed = _evaluate(left)
    claimed = _evaluate(right)
    if computed is None or claimed is None or not computed.operations:
        return None
    return Statement(
        f"{_remove_spaces(left)}={_remove_spaces(right)}",
        claimed.value,
        _is_equal(computed, claimed, right),
    )


_parse_short_sides = lru_cache(maxsize=65_536)(_parse_sides)


@dataclass(frozen=True, slots=True)
class _Evaluated:
    value: Fraction
    operations: int
    divides: bool


def _is_equal(computed: _Evaluated, claimed: _Evaluated, right: str) -> bool:
    """Exact equality; a quotient may also be rounded to the decimals that are written."""
    if computed.value == claimed.value:
        return True
    _, point, decimals = right.partition(".")
    if not (point and computed.divides and not claimed.operations):
        return False
    return abs(computed.value - claimed.value) <= Fraction(1, 2 * 10 ** len(decimals))


def _evaluate(expression: str) -> _Evaluated | None:
    """The value of an expression, or None: invalid, too large, or a division by zero."""
    tokens: list[str] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None or len(tokens) > 3 * MAX_OPERATIONS or len(match[1]) > MAX_DIGITS:
            return None
        tokens.append(match[1])
        position = match.end()
    try:
        return _ExpressionParser(tokens).parse()
    except (_InvalidExpression, ZeroDivisionError):
        return None


class _InvalidExpression(Exception):
    """The tokens do not form an expression."""


class _ExpressionParser:
    """Recursive descent over at most a few hundred tokens: sums of products of numbers."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position, self.operations, self.divides = tokens, 0, 0, False

    def parse(self) -> _Evaluated:
        value = self._sum(0)
        if self.position != len(self.tokens) or self.operations > MAX_OPERATIONS:
            raise _InvalidExpression
        return _Evaluated(value, self.operations, self.divides)

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self.position += 1
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
                raise _InvalidExpression
            return value
        if token == "-" and depth < 8:
            return -self._atom(depth + 1)
        if not token[:1].isdigit():
            raise _InvalidExpression
        return Fraction(token)


def _remove_spaces(text: str) -> str:
    return "".join(text.split())


def _canonicalize(statement: str) -> str:
    """A sum or a product with its operands sorted; other statements unchanged."""
    left, _, right = statement.partition("=")
    for sign in "+*":
        operands = left.split(sign)
        if len(operands) > 1 and all(operand.isdigit() for operand in operands):
            return f"{sign.join(sorted(operands))}={right}"
    return statement
