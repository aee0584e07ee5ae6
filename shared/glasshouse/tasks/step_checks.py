"""How tasks write their steps: each check recomputes the steps of a CoT and reads their conclusion."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from glasshouse.tasks.arithmetic_statements import find_number_rows, find_statements


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
