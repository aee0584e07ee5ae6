"""Two sequences merged element by element; the rest of the longer one follows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import zip_longest

from pydantic import Field

from glasshouse.tasks.base import Range, Task, TaskOptions, task
from glasshouse.tasks.enumeration import mixed_radix
from glasshouse.tasks.scratchpad import Scratchpad
from glasshouse.tasks.step_checks import check_merging
from glasshouse.types import AnswerKind, Problem


class InterleaveOptions(TaskOptions):
    length: Range = (2, 5)
    """Minimum and maximum length of each sequence."""
    high: int = Field(9, ge=1)
    """Largest element. The smallest is 0."""


@task("interleave")
class Interleave(Task[InterleaveOptions]):
    description = "two sequences merged element by element"
    role = (
        "You merge two lists by taking one element from each in turn; "
        "when one list runs out, the rest of the other follows."
    )
    answer_format = "<a, b, c, ...>"
    kind = AnswerKind.SEQUENCE
    Options = InterleaveOptions
    check_steps = staticmethod(check_merging)

    def levels(self) -> Mapping[str, int]:
        low, high = self.options.length
        lengths = range(low, high + 1)
        return {f"{a}+{b}": (self.options.high + 1) ** (a + b) for a in lengths for b in lengths}

    def problem_at(self, level: str, index: int) -> Problem:
        first, second = map(int, level.split("+"))
        elements = mixed_radix(index, [self.options.high + 1] * (first + second))
        return self.make_problem(elements[:first], elements[first:])

    def make_problem(self, first: tuple[int, ...], second: tuple[int, ...]) -> Problem:
        a, b = list(first), list(second)
        return Problem(
            task=self.name,
            key=f"{a}|{b}".replace(" ", ""),
            question=f"Interleave {a} and {b}.",
            gold_answer=join_with_commas(interleave(a, b)),
            answer_kind=self.kind,
            level=f"{len(a)}+{len(b)}",
            meta={"first": a, "second": b},
        )

    def example(self) -> Problem:
        return self.make_problem((4, 1, 6), (0, 7))

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        merged: list[int] = []
        for pair in zip_longest(problem.meta["first"], problem.meta["second"]):
            elements = [e for e in pair if e is not None]
            merged += scratchpad.write(
                "",
                elements,
                lambda rng, elements=elements: corrupt_pair(elements, rng),  # type: ignore[misc]
                lambda values: " ".join(map(str, values)),
            )
        return join_with_commas(merged)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Concatenates the lists; if that is correct by chance, drops the last element."""
        joined = problem.meta["first"] + problem.meta["second"]
        return join_with_commas(
            joined if join_with_commas(joined) != problem.gold_answer else joined[:-1]
        )


def interleave(first: list[int], second: list[int]) -> list[int]:
    """One element from each in turn, then the rest. Example: [1, 2, 3] and [9] give [1, 9, 2, 3]."""
    return [e for pair in zip_longest(first, second) for e in pair if e is not None]


def corrupt_pair(pair: list[int], rng: random.Random) -> list[int]:
    """Swaps the pair, or changes its first element."""
    if len(pair) == 2 and pair[0] != pair[1]:
        return pair[::-1]
    return [(pair[0] + 1 + rng.randrange(8)) % 10, *pair[1:]]


def join_with_commas(elements: list[int]) -> str:
    return ", ".join(map(str, elements))
