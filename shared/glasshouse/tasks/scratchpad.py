"""Written working, statement by statement, with at most one planted slip.

A task solves its problem once, through a `Working`; the same code then yields the correct
demonstration and, with `slip_at`, one whose mistake is carried through to a wrong answer, as a
person's would be.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """After a slip, a later step cannot be done: a division that no longer comes out even, say."""


class Working:
    """Lines of working; the statement number `slip_at`, if any, is written wrongly.

    Example:
        w = Working(random.Random(0), slip_at=0)
        w.number("1+2+3=", 6)  # returns 7, say, and everything after it uses 7
    """

    def __init__(self, rng: random.Random, slip_at: int | None = None) -> None:
        self.rng = rng
        self.slip_at = slip_at
        self.lines: list[str] = []

    def write(
        self,
        before: str,
        right: T,
        wrong: Callable[[random.Random], T],
        show: Callable[[T], str] = str,
    ) -> T:
        """Write `before` and the value; return the value that the working goes on with."""
        value = wrong(self.rng) if len(self.lines) == self.slip_at else right
        self.lines.append(before + show(value))
        return value

    def number(self, before: str, right: int) -> int:
        """A statement whose value is a natural number; a slip is off by one, two or ten."""
        return self.write(before, right, lambda rng: off_by(right, rng))


def off_by(value: int, rng: random.Random) -> int:
    """A near miss of a natural number: never the number itself, never negative."""
    delta = rng.choice((1, 2, 10))
    return value - delta if value >= delta and rng.random() < 0.5 else value + delta
