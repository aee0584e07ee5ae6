"""Word problems of one to three operations: the chains of `arithmetic`, told as a story.

Training problems and held-out ones are told in different words, so accuracy on held-out problems is that on wordings
which the model was not trained on. A problem's key is its chain: the same chain is one problem in every wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from glasshouse import randomness
from glasshouse.tasks.arithmetic import Arithmetic, ArithmeticOptions
from glasshouse.tasks.base import Range, task
from glasshouse.tasks.streams import Split, assign_split
from glasshouse.types import Problem

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gina", "Hugo")
THINGS = ("apple", "shell", "coin", "stamp", "marble", "pencil", "ticket", "button")
WORDINGS: Mapping[str, tuple[str, ...]] = {
    "": ("{name} has {number}.", "{name} starts with {number}.", "A box holds {number}."),
    "+": ("{name} buys {n} more.", "{name} finds {n} more.", "Someone adds {n}."),
    "-": ("{name} loses {n} of them.", "{name} gives {n} away.", "Someone takes {n} out."),
    "*": (
        "Each one is swapped for {n} new ones.",
        "Then there are {n} times as many.",
        "The number is multiplied by {n}.",
    ),
    "/": (
        "They are split into {n} equal piles, and one pile is kept.",
        "They are shared equally by {n} people, and only one share stays.",
        "Only one in {n} is kept.",
    ),
    "?": (
        "How many {things} are there now?",
        "How many {things} are left in the end?",
        "What is the final number of {things}?",
    ),
}
"""How each part of a story is told; the last wording of each part is that of held-out problems."""


class WordProblemsOptions(ArithmeticOptions):
    steps: Range = (1, 3)
    """Minimum and maximum number of operations in a problem."""
    operand_high: int = Field(20, ge=2, le=99)
    """Largest operand. The smallest is 1 (2 for * and /)."""
    value_high: int = Field(200, ge=9, le=9999)
    """Largest intermediate result. The smallest is 0."""
    decimals: Literal[0] = 0
    """Every division is exact."""


@task("word_problems")
class WordProblems(Arithmetic):
    description = "one to three operations, told as a story"
    role = "You solve word problems."
    Options = WordProblemsOptions

    def make_problem(self, chain: list[tuple[str, int]]) -> Problem:
        problem = super().make_problem(chain)
        rng = randomness.stream("story", problem.key)
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        is_trained = assign_split(problem) is Split.TRAIN

        def tell(part: str, n: int = 0) -> str:
            wordings = WORDINGS[part][:-1] if is_trained else WORDINGS[part][-1:]
            number = f"{n} {thing}{'s' * (n != 1)}"
            return rng.choice(wordings).format(name=name, n=n, number=number, things=f"{thing}s")

        story = [tell(operation, operand) for operation, operand in problem.meta["chain"]]
        return replace(problem, question=" ".join([*story, tell("?")]))

    def example(self) -> Problem:
        return self.make_problem([("", 4), ("+", 8), ("*", 3)])
