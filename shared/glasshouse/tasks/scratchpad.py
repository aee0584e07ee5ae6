"""Step-by-step solutions, with at most one injected error.

A task implements its solution once, writing each step to a `Scratchpad`. The same code then yields
the correct demonstration and, with `error_at`, one whose error propagates to a wrong answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
        corrupt: Callable[[random.Random], T],
        to_text: Callable[[T], str] = str,
    ) -> T:
        """Writes `prefix` and the value; returns the value that later steps must use."""
        value = corrupt(self.rng) if len(self.lines) == self.error_at else correct
        self.lines.append(prefix + to_text(value))
        return value

    def write_number(self, prefix: str, correct: int) -> int:
        """Writes a non-negative integer; an injected error is off by 1, 2 or 10."""
        return self.write(prefix, correct, lambda rng: near_miss(correct, rng))


def near_miss(value: int, rng: random.Random) -> int:
    """A number near `value`: never equal to it, never negative."""
    delta = rng.choice((1, 2, 10))
    return value - delta if value >= delta and rng.random() < 0.5 else value + delta
