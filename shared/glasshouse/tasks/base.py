"""What a task is: a numbered space of problems, two ways to ask, several ways to answer.

A subclass says what its problems are (`levels`, `at`), how one is worked (`work`) and what a
hasty person would blurt out (`hasty`); everything else, prompts and demonstrations included,
follows from these.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from glasshouse import randomness
from glasshouse.errors import TaskError, nearest
from glasshouse.tasks.scratchpad import Stuck, Working
from glasshouse.types import AnswerKind, Message, Problem, Style

NO_STEPS = "Answer only, no steps."


class TaskOptions(BaseModel):
    """Base of every task's difficulty settings: unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _rising(pair: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= pair[0] <= pair[1]:
        raise ValueError("give the fewest first, 1 or more, then the most, as in [2, 4]")
    return pair


Range = Annotated[tuple[int, int], AfterValidator(_rising)]
"""Fewest and most of something, both included."""

SomeOptions = TypeVar("SomeOptions", bound=TaskOptions)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of answering, as base models are shown it."""

    correct: bool
    """Is the answer right?"""
    stepwise: bool
    """Is working shown before it?"""
    about: str


MODES: Mapping[str, Mode] = {
    "steps": Mode(True, True, "right working, right answer"),
    "direct": Mode(True, False, "the right answer at once"),
    "slip": Mode(False, True, "one wrong step, carried through to a wrong answer"),
    "hasty": Mode(False, False, "a typical wrong answer at once"),
}


class Task(ABC, Generic[SomeOptions]):
    """One kind of problem at one difficulty.

    Example:
        task = Multiplication()
        problem = task.draw(randomness.stream("demo", 0))
        task.messages(problem, Style.COT)
        task.demonstrate(problem, "steps", randomness.stream("demo", 1))
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for people."""
    skill: ClassVar[str]
    """What the system prompt says the model is to do, as a sentence."""
    form: ClassVar[str] = "<number>"
    """How the answer is written after the tag."""
    kind: ClassVar[AnswerKind] = AnswerKind.NUMBER
    Options: ClassVar[type[TaskOptions]]
    teaching: ClassVar[frozenset[str]] = frozenset()
    """Options that shape what a base model is shown and not what is asked of it."""
    vocabularies: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Where working ends its lines with words for a state: those words, by vocabulary. An intervention
    exchanges one for another of the same vocabulary."""

    def __init__(self, options: SomeOptions | None = None) -> None:
        self.options: SomeOptions = options if options is not None else self.Options()  # type: ignore[assignment]

    # --- the space -------------------------------------------------------------------------

    @abstractmethod
    def levels(self) -> Mapping[str, int | None]:
        """Difficulty levels and how many distinct problems each holds (None: not countable)."""

    @abstractmethod
    def at(self, level: str, index: int) -> Problem:
        """The problem number `index` of a level: a bijection onto the level's problems."""

    def size(self) -> int | None:
        """How many distinct problems there are, over all levels."""
        sizes = list(self.levels().values())
        return None if None in sizes else sum(n for n in sizes if n is not None)

    def draw(self, rng: random.Random) -> Problem:
        """A problem from a keyed stream: a level, each as likely as any, then a problem of it."""
        levels = {level: size for level, size in self.levels().items() if size != 0}
        if not levels:
            raise TaskError(f"{self.name} has no problem at these options.")
        level = rng.choice(list(levels))
        return self.at(level, rng.randrange(levels[level] or 2**63))

    # --- asking ----------------------------------------------------------------------------

    @abstractmethod
    def example(self) -> Problem:
        """The worked example of the system prompt."""

    def system(self, style: Style) -> str:
        """The system prompt: steps and a worked example, or steps forbidden."""
        if style is Style.DIRECT:
            return (
                f"{self.skill} Give only the final answer, as [ANSWER] {self.form}. "
                f"Do not show steps, working or explanations.{self.precision()}"
            )
        example = self.example()
        shown = self.demonstrate(example, "steps", random.Random(0))
        return (
            f"{self.skill} Solve it step by step, then end with [ANSWER] {self.form}."
            f"{self.precision()}\n\nExample\n{example.question}\n{shown}"
        )

    def precision(self) -> str:
        """A sentence on decimals, with a leading space; empty where answers are whole."""
        return ""

    def messages(self, problem: Problem, style: Style) -> list[Message]:
        """The chat that asks this problem. The question itself repeats that steps are forbidden,
        so that a model whose template drops system messages is told too."""
        question = problem.question
        if style is Style.DIRECT:
            question = f"{question} {NO_STEPS}"
        return [
            {"role": "system", "content": self.system(style)},
            {"role": "user", "content": question},
        ]

    # --- answering -------------------------------------------------------------------------

    @abstractmethod
    def work(self, problem: Problem, working: Working) -> str:
        """Solve the problem, writing each step; returns the answer as text."""

    @abstractmethod
    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """A typical wrong answer; `demonstrate` sees to it that it is wrong."""

    @property
    def modes(self) -> Mapping[str, Mode]:
        """The ways in which this task can be demonstrated."""
        return MODES

    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        """A completion in one of the task's modes, as a base model may be shown it."""
        if mode not in self.modes:
            raise TaskError(f'{self.name} has no mode "{mode}".{nearest(mode, self.modes)}')
        if mode == "direct":
            return finish([], problem.answer)
        if mode == "hasty":
            return finish([], self._wrong(problem, rng))
        working = Working(rng)
        answer = self.work(problem, working)
        if mode == "steps":
            return finish(working.lines, answer)
        for _ in range(100):  # a slip may cancel out, or a later step may not be possible with it
            slipped = Working(rng, slip_at=rng.randrange(len(working.lines)))
            try:
                wrong = self.work(problem, slipped)
            except Stuck:
                continue
            if wrong != answer and self.slipped(problem, wrong):
                return finish(slipped.lines, wrong)
        return finish(working.lines, self._wrong(problem, rng))

    def slipped(self, problem: Problem, answer: str) -> bool:
        """Is this wrong answer one that `slip` may show? A task may want more of it than being wrong."""
        return True

    def _wrong(self, problem: Problem, rng: random.Random) -> str:
        for _ in range(20):
            wrong = self.hasty(problem, rng)
            if wrong != problem.answer:
                return wrong
        raise TaskError(f"{self.name}: no wrong answer could be made up for {problem.key}.")

    def describe(self) -> dict[str, Any]:
        """Name, options and size, for provenance."""
        return {
            "task": self.name,
            "options": self.options.model_dump(mode="json"),
            "size": self.size(),
        }


def built(kind: type[Task[Any]], options: Mapping[str, Any]) -> Task[Any]:
    """A task at these options; an unknown or wrong one is a sentence."""
    for option in options:
        if option not in kind.Options.model_fields:
            near = nearest(option, kind.Options.model_fields)
            raise TaskError(f'{kind.name} has no option "{option}".{near}')
    try:
        return kind(kind.Options.model_validate(dict(options)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        raise TaskError(
            f'{kind.name}: option "{where}": {first["msg"]} (got {first["input"]!r}).'
        ) from None


def finish(lines: list[str], answer: str) -> str:
    """Working, then the tag that every task asks for."""
    return "\n".join([*lines, f"[ANSWER] {answer}"])


def shuffled(items: tuple[Any, ...], *key: randomness.Part) -> list[Any]:
    """The items in an order that is a function of the key."""
    order = list(items)
    randomness.stream("order", *key).shuffle(order)
    return order
