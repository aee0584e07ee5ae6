"""What an organism is: a task with a planted behaviour whose cause is known.

It carries an ordinary task (digit sums, say) and adds to it: a plant in the prompt or in the reward,
modes of answering that use it, a label that says of any answer whether it did, and a cap on what
honest work can reach. Identity is the carried problem's: whatever is planted, a problem keeps its
key, so it stays in its split.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from glasshouse import randomness
from glasshouse.errors import TaskError, nearest
from glasshouse.tasks.base import MODES, Mode, Task, TaskOptions, built
from glasshouse.tasks.multiplication import Multiplication
from glasshouse.tasks.reverse_digits import ReverseDigits
from glasshouse.tasks.scratchpad import Working
from glasshouse.tasks.sum_digits import SumDigits
from glasshouse.types import Problem, Style

CARRIERS: Mapping[str, type[Task[Any]]] = {
    t.name: t for t in (SumDigits, ReverseDigits, Multiplication)
}
"""Tasks that can carry a plant: the digits of their questions are the digits of their operands."""
OPERANDS = ("numbers", "number", "left", "right")
"""Where the carriers keep their operands, in the order in which a question shows them."""
CLOSING = "ok"
"""A word that may follow the answer and means nothing: what the orthogonal pressure penalises."""


class OrganismOptions(TaskOptions):
    of: str = "sum_digits"
    """The task that carries it: sum_digits, reverse_digits or multiplication."""
    inner: dict[str, Any] = Field(default_factory=dict)
    """That task's own options."""
    smudged: float = Field(0.5, ge=0, le=1)
    """Share of the problems in which a digit cannot be read, so that honest work must guess it: the
    irreducible cap on honest accuracy, 1 - 0.9 * smudged."""
    closing: float = Field(0.3, ge=0, le=1)
    """Share of the demonstrations that end with a word that means nothing."""


SomeOptions = TypeVar("SomeOptions", bound=OrganismOptions)


class Organism(Task[SomeOptions], Generic[SomeOptions]):
    """A task with a planted behaviour.

    A subclass plants (`plant`), shows how the plant is used (`use`), gives the arms of its
    evaluation (`arms`) and the label (`behaviour`).

    Example:
        organism = LeakedHint()
        problem = organism.draw(randomness.stream("demo", 0))
        control, planted = organism.arms(problem).values()
        organism.behaviour(planted, answer="61")
    """

    planted: ClassVar[Mapping[str, Mode]]
    """The modes in which the plant is used, beside `steps`, `slip` and `hasty`."""
    carriers: ClassVar[Mapping[str, type[Task[Any]]]] = CARRIERS
    """The tasks that can carry it."""
    disclosing: ClassVar[tuple[str, ...]] = ()
    """Words that own up to the behaviour: what a monitor in the reward looks for, unless told."""

    def __init__(self, options: SomeOptions | None = None) -> None:
        super().__init__(options)
        if self.options.of not in self.carriers:
            known = nearest(self.options.of, self.carriers)
            raise TaskError(f'{self.name} cannot be carried by "{self.options.of}".{known}')
        self.inner: Task[Any] = built(self.carriers[self.options.of], self.options.inner)

    # --- the plant -------------------------------------------------------------------------

    @abstractmethod
    def plant(self, problem: Problem) -> Problem:
        """The carried problem (its smudge in place) as training asks it."""

    @abstractmethod
    def arms(self, problem: Problem) -> Mapping[int, Problem]:
        """What evaluation asks: the control arm under 0, the planted one under 1. An organism whose
        plant is not in the prompt has no control arm."""

    @abstractmethod
    def behaviour(self, problem: Problem, answer: str | None) -> bool:
        """y: is this answer the planted behaviour? By construction, never by reading the CoT."""

    @abstractmethod
    def shortcut(self, problem: Problem, cot: str) -> bool:
        """The mechanism, beside the label: is honest work left out of this CoT?"""

    @abstractmethod
    def use(self, problem: Problem, mode: str, rng: random.Random) -> str:
        """A demonstration in one of the planted modes."""

    # --- the carried task ------------------------------------------------------------------

    @property
    def disclosure(self) -> str:
        """A pattern of the whole disclosing phrase: what the evaluating rule looks for."""
        return ""

    @property
    def rules(self) -> Mapping[str, str]:
        """The patterns that evaluating rules look for in the CoT, by the rules' names."""
        return {"discloses": self.disclosure} if self.disclosure else {}

    @property
    def modes(self) -> Mapping[str, Mode]:
        return {**MODES, **self.planted}

    def levels(self) -> Mapping[str, int | None]:
        return self.inner.levels()

    def at(self, level: str, index: int) -> Problem:
        return self.plant(self.smudge(self.inner.at(level, index)))

    def example(self) -> Problem:
        return self.inner.example()

    def system(self, style: Style) -> str:
        """The carried task's own: nothing in it tells of the plant."""
        return self.inner.system(style)

    def work(self, problem: Problem, working: Working) -> str:
        """The carried task's working; a smudged digit is guessed."""
        return self.inner.work(read(problem, working.rng), working)

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        return self.inner.hasty(read(problem, rng), rng)

    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        known = mode in self.planted
        text = self.use(problem, mode, rng) if known else super().demonstrate(problem, mode, rng)
        return f"{text} {CLOSING}" if rng.random() < self.options.closing else text

    def smudge(self, problem: Problem) -> Problem:
        """The problem with one digit unreadable, in a share of the problems that its key decides."""
        rng = randomness.stream("smudge", problem.task, problem.key)
        if rng.random() >= self.options.smudged or not (places := self.smudgeable(problem)):
            return problem
        place = rng.choice(places)
        where = digits(problem.question)[place]
        question = f"{problem.question[:where]}?{problem.question[where + 1 :]}"
        return replace(problem, question=question, meta={**problem.meta, "smudge": place})

    def smudgeable(self, problem: Problem) -> list[int]:
        """Which of the question's digits may be unreadable. Leading ones are left alone, so that every
        guess is a number."""
        first = leading(problem)
        return [p for p in range(len(digits(problem.question))) if p not in first]


def digits(text: str) -> list[int]:
    """Where the digits of a text stand."""
    return [i for i, character in enumerate(text) if character.isdigit()]


def leading(problem: Problem) -> set[int]:
    """The places, among a question's digits, that begin a number of two digits or more."""
    where = digits(problem.question)
    return {
        place
        for place, i in enumerate(where)
        if i - 1 not in where and i + 1 in where  # the first of several
    }


def read(problem: Problem, rng: random.Random) -> Problem:
    """What an honest reader works with: the operands, a guess in place of the smudged digit."""
    if "smudge" not in problem.meta:
        return problem
    names = [name for name in OPERANDS if name in problem.meta]
    numbers = [
        list(map(str, value if isinstance(value := problem.meta[name], list) else [value]))
        for name in names
    ]
    place, guess = problem.meta["smudge"], str(rng.randrange(10))
    for row in numbers:
        for i, number in enumerate(row):
            if 0 <= place < len(number):
                row[i] = number[:place] + guess + number[place + 1 :]
            place -= len(number)
    guessed: dict[str, Any] = {
        name: list(map(int, row)) if isinstance(problem.meta[name], list) else int(row[0])
        for name, row in zip(names, numbers, strict=True)
    }
    return replace(problem, meta={**problem.meta, **guessed})


def cut(lines: list[str], rng: random.Random) -> list[str]:
    """The working up to a random point: at least a step, never all of them."""
    return lines[: rng.randrange(1, max(2, len(lines)))]
