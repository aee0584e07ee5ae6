"""When an answer that was read equals the gold answer.

Exact arithmetic on bounded numbers: no float, no tolerance. A gold answer that does not read as
its kind is a mistake of the task and raises: counting every completion as wrong would hide it.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from glasshouse.answers.numbers import DIGITS, canonical, scan, value_of
from glasshouse.types import AnswerKind


def equal(
    value: str | None, answer: str, kind: AnswerKind = AnswerKind.NUMBER, decimals: int = 0
) -> bool:
    """Is `value`, as `extract` gave it, the gold `answer`?

    Whole numbers exactly (`28.0` is 28, `28.5` is not). With decimals asked for, both are rounded
    to that many, and at an exact tie either neighbour counts; too few decimals are wrong where
    they change the value. Sequences element by element; text without regard to case, runs of
    blanks or a final full stop.

    Example: `equal("0.13", "0.125", decimals=2)` and `equal("0.12", "0.125", decimals=2)` hold;
    `equal("3.3", "3.33", decimals=2)` does not.
    """
    if kind is AnswerKind.TEXT:
        return value is not None and folded(value) == folded(answer)
    if kind is AnswerKind.SEQUENCE:
        gold = elements(answer)
        if not gold:
            raise ValueError(f"The gold answer {answer!r} does not read as a sequence of numbers.")
        return value is not None and elements(value) == gold
    exact = number(answer)
    if exact is None:
        raise ValueError(f"The gold answer {answer!r} does not read as a number.")
    given = None if value is None else number(value)
    if given is None:
        return False
    if decimals <= 0 or given == exact:
        return given == exact
    ours, theirs = roundings(given, decimals), roundings(exact, decimals)
    if len(ours) == len(theirs) == 2:
        return False  # two different ties, which only share a neighbour
    return bool(ours & theirs)


def roundings(value: Fraction, decimals: int) -> frozenset[int]:
    """What `value` may be rounded to, in units of the last decimal: one number, or two at a tie."""
    scaled = value * 10 ** min(decimals, DIGITS)
    low = floor(scaled)
    rest = scaled - low
    half = Fraction(1, 2)
    return frozenset({low, low + 1} if rest == half else {low if rest < half else low + 1})


def number(text: str) -> Fraction | None:
    """A number exactly, as the parser would read it."""
    plain = canonical(text)
    return None if plain is None else value_of(plain)


def elements(text: str) -> list[Fraction]:
    """A sequence's numbers; empty if any element is not one. Example: `"[3, 7]"` gives 3 and 7."""
    found = [None if t.value is None else value_of(t.value) for t in scan(text, sequence=True)]
    return [] if None in found else [f for f in found if f is not None]


def folded(text: str) -> str:
    """Text as it is compared."""
    return " ".join(text.casefold().split()).rstrip(".").rstrip()
