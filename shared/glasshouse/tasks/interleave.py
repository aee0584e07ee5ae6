"""Two sequences merged element by element; the rest of the longer one follows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import zip_longest

from pydantic import Field

from glasshouse.tasks.base import Range, Task, TaskOptions, task
from glasshouse.tasks.enumeration import mixed_radix
from glasshouse.tasks.steps import Scratchpad, check_merging
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
        merged = [str(e) for pair in zip_longest(a, b) for e in pair if e is not None]
        return Problem(
            task=self.name,
            key=f"{a}|{b}".replace(" ", ""),
            question=f"Interleave {a} and {b}.",
            gold_answer=", ".join(merged),
            answer_kind=self.kind,
            level=f"{len(a)}+{len(b)}",
            meta={"first": a, "second": b},
        )

    def example(self) -> Problem:
        return self.make_problem((4, 1, 6), (0, 7))

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        merged: list[int] = []
        for pair in zip_longest(problem.meta["first"], problem.meta["second"]):
            taken = [e for e in pair if e is not None]
            taken = scratchpad.write("", taken, corrupt_pair, lambda t: " ".join(map(str, t)))
            merged += taken
        return ", ".join(map(str, merged))

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """Concatenates the lists; if that is correct by chance, drops the last element."""
        joined = [str(e) for e in problem.meta["first"] + problem.meta["second"]]
        return ", ".join(joined if ", ".join(joined) != problem.gold_answer else joined[:-1])


def corrupt_pair(pair: list[int], rng: random.Random) -> list[int]:
    """Swaps the pair, or changes its first element."""
    if len(pair) == 2 and pair[0] != pair[1]:
        return pair[::-1]
    return [(pair[0] + 1 + rng.randrange(8)) % 10, *pair[1:]]
