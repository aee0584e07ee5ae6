"""Two sequences merged element by element; what is left of the longer one follows.

The task that the arithmetic control is a rehearsal for.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import zip_longest

from pydantic import Field

from glasshouse.tasks.base import Range, Task, TaskOptions
from glasshouse.tasks.enumeration import mixed_radix
from glasshouse.tasks.scratchpad import Working
from glasshouse.types import AnswerKind, Problem


class InterleaveOptions(TaskOptions):
    length: Range = (2, 5)
    """Shortest and longest sequence; the two may differ."""
    high: int = Field(9, ge=1)
    """Elements are 0 to this."""


class Interleave(Task[InterleaveOptions]):
    name = "interleave"
    about = "two sequences merged element by element"
    skill = (
        "You merge two lists by taking one element from each in turn; "
        "when one list runs out, the rest of the other follows."
    )
    form = "<a, b, c, ...>"
    kind = AnswerKind.SEQUENCE
    Options = InterleaveOptions

    def levels(self) -> Mapping[str, int]:
        short, long = self.options.length
        lengths = range(short, long + 1)
        return {f"{a}+{b}": (self.options.high + 1) ** (a + b) for a in lengths for b in lengths}

    def at(self, level: str, index: int) -> Problem:
        first, second = map(int, level.split("+"))
        elements = mixed_radix(index, [self.options.high + 1] * (first + second))
        return self.ask(elements[:first], elements[first:])

    def ask(self, first: tuple[int, ...], second: tuple[int, ...]) -> Problem:
        a, b = list(first), list(second)
        return Problem(
            task=self.name,
            key=f"{a}|{b}".replace(" ", ""),
            question=f"Interleave {a} and {b}.",
            answer=listed(merge(a, b)),
            kind=self.kind,
            level=f"{len(a)}+{len(b)}",
            meta={"first": a, "second": b},
        )

    def example(self) -> Problem:
        return self.ask((4, 1, 6), (0, 7))

    def work(self, problem: Problem, working: Working) -> str:
        merged: list[int] = []
        for pair in zip_longest(problem.meta["first"], problem.meta["second"]):
            here = [e for e in pair if e is not None]
            merged += working.write("", here, lambda rng, here=here: misplaced(here, rng), spaced)  # type: ignore[misc]
        return listed(merged)

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """One list after the other; where that is right by chance, an element too few."""
        joined = problem.meta["first"] + problem.meta["second"]
        return listed(joined if listed(joined) != problem.answer else joined[:-1])


def merge(first: list[int], second: list[int]) -> list[int]:
    """One from each in turn, then the rest. Example: [1, 2, 3] and [9] give [1, 9, 2, 3]."""
    return [e for pair in zip_longest(first, second) for e in pair if e is not None]


def misplaced(pair: list[int], rng: random.Random) -> list[int]:
    """The pair turned round, or one of its elements wrong."""
    if len(pair) == 2 and pair[0] != pair[1]:
        return pair[::-1]
    return [(pair[0] + 1 + rng.randrange(8)) % 10, *pair[1:]]


def listed(elements: list[int]) -> str:
    return ", ".join(map(str, elements))


def spaced(elements: Iterable[int]) -> str:
    return " ".join(map(str, elements))
