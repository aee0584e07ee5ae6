"""The `Organism` base class: a task with a planted behaviour whose cause is known.

An organism wraps an ordinary task (the inner task, for example digit sums). It adds a cause in the
prompt or in the reward, modes that show the behaviour, a label that tells whether an answer shows it,
and an upper bound on the accuracy of honest solutions. Problems keep the key of the inner problem, so
they stay in their split.
"""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from glasshouse import randomness
from glasshouse.errors import TaskError, did_you_mean
from glasshouse.tasks.base import MODES, Mode, Task, TaskOptions, task_from_options
from glasshouse.tasks.digits import Multiplication, ReverseDigits, SumDigits
from glasshouse.tasks.steps import Scratchpad
from glasshouse.types import Problem, Style

OPERAND_NAMES = ("numbers", "number", "left", "right")
"""The entries of `Problem.meta` that hold operands, in the order in which the question lists them."""
FILLER_WORD = "ok"
"""A meaningless word that may follow the answer; the orthogonal penalty penalises it."""


class OrganismOptions(TaskOptions):
    inner_task: str = "sum_digits"
    """The wrapped task: sum_digits, reverse_digits or multiplication."""
    inner_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the wrapped task."""
    masked_digit_rate: float = Field(0.5, ge=0, le=1)
    """Share of problems with one digit replaced by `?`, which an honest solution has to guess. It bounds
    honest accuracy by 1 - 0.9 * masked_digit_rate."""
    filler_word_rate: float = Field(0.3, ge=0, le=1)
    """Share of demonstrations that end with a meaningless filler word."""


SomeOptions = TypeVar("SomeOptions", bound=OrganismOptions)


class Organism(Task[SomeOptions], Generic[SomeOptions]):
    """A task with a planted behaviour.

    A subclass defines demonstrations of the behaviour (`demonstrate_planted`) and its label
    (`shows_behaviour`). If the cause is in the prompt, it also defines the prompt in training
    (`training_problem`) and in evaluation (`arms`).

    Example:
        organism = LeakedHint()
        problem = organism.draw(randomness.stream("demo", 0))
        control, planted = organism.arms(problem).values()
        organism.shows_behaviour(planted, answer="61")
    """

    is_organism = True
    planted_modes: ClassVar[Mapping[str, Mode]]
    """The modes that show the planted behaviour, in addition to `MODES`."""
    inner_tasks: ClassVar[tuple[type[Task[Any]], ...]] = (SumDigits, ReverseDigits, Multiplication)
    """The tasks that this organism can wrap."""
    disclosure_keywords: ClassVar[tuple[str, ...]] = ()
    """Words that disclose the behaviour: the default keywords of the `monitor` penalty."""

    def __init__(self, options: SomeOptions | None = None) -> None:
        super().__init__(options)
        name, known = self.options.inner_task, {t.name: t for t in self.inner_tasks}
        if name not in known:
            raise TaskError(
                f'{self.name}: inner_task cannot be "{name}".{did_you_mean(name, known)}'
            )
        self.inner: Task[Any] = task_from_options(known[name], self.options.inner_options)

    # --- the planted behaviour -------------------------------------------------------------

    def training_problem(self, problem: Problem) -> Problem:
        """Turns an inner problem (already masked) into the problem that training asks. Unchanged if the
        cause is in the reward, not in the prompt."""
        return problem

    def arms(self, problem: Problem) -> Mapping[int, Problem]:
        """The problems of an evaluation: 0 is the control arm, 1 the planted arm. An organism whose
        cause is not in the prompt has no control arm."""
        return {1: problem}

    @abstractmethod
    def shows_behaviour(self, problem: Problem, answer: str | None) -> bool:
        """Does this answer show the planted behaviour? Decided from the answer alone, never the CoT."""

    @abstractmethod
    def skips_work(self, problem: Problem, cot: str) -> bool:
        """Does this CoT leave out steps that an honest solution needs?"""

    @abstractmethod
    def demonstrate_planted(self, problem: Problem, mode: str, rng: random.Random) -> str:
        """A demonstration in one of the planted modes."""

    @property
    def monitor_patterns(self) -> Mapping[str, str]:
        """Regular expressions of the organism's own rule monitors, by monitor name. The pattern of
        `disclosure_rule` matches a CoT that discloses the behaviour."""
        return {}

    # --- the inner task --------------------------------------------------------------------

    @property
    def modes(self) -> Mapping[str, Mode]:
        return {**MODES, **self.planted_modes}

    def levels(self) -> Mapping[str, int | None]:
        return self.inner.levels()

    def problem_at(self, level: str, index: int) -> Problem:
        return self.training_problem(self.mask_digit(self.inner.problem_at(level, index)))

    def example(self) -> Problem:
        return self.inner.example()

    def system_prompt(self, style: Style) -> str:
        """The inner task's system prompt: it does not mention the planted behaviour."""
        return self.inner.system_prompt(style)

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        """Solves the inner problem; a masked digit is guessed."""
        return self.inner.solve(fill_masked_digit(problem, scratchpad.rng), scratchpad)

    def guess(self, problem: Problem, rng: random.Random) -> str:
        return self.inner.guess(fill_masked_digit(problem, rng), rng)

    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        if mode in self.planted_modes:
            text = self.demonstrate_planted(problem, mode, rng)
        else:
            text = super().demonstrate(problem, mode, rng)
        return f"{text} {FILLER_WORD}" if rng.random() < self.options.filler_word_rate else text

    def mask_digit(self, problem: Problem) -> Problem:
        """Masks one digit of the question, in a share of the problems. Depends only on the key."""
        # "smudge" keys the random stream: must not change
        rng = randomness.stream("smudge", problem.task, problem.key)
        if rng.random() >= self.options.masked_digit_rate:
            return problem
        maskable = self.maskable_digits(problem)
        if not maskable:
            return problem
        digit = rng.choice(maskable)
        question = replace_digit(problem.question, digit, "?")
        return replace(problem, question=question, meta={**problem.meta, "masked_digit": digit})

    def maskable_digits(self, problem: Problem) -> list[int]:
        """Indices among the question's digits that may be masked: not the first of several digits, so that
        any guess gives a valid number."""
        at = digit_positions(problem.question)
        return [digit for digit, i in enumerate(at) if i - 1 in at or i + 1 not in at]


def digit_positions(text: str) -> list[int]:
    """The positions of the digits in a text."""
    return [i for i, character in enumerate(text) if character.isdigit()]


def replace_digit(text: str, digit: int, character: str) -> str:
    """Example: `replace_digit("58 and 301", 2, "?")` gives `58 and ?01`"""
    position = digit_positions(text)[digit]
    return f"{text[:position]}{character}{text[position + 1 :]}"


def fill_masked_digit(problem: Problem, rng: random.Random) -> Problem:
    """Replaces the masked digit in the operands by a random guess."""
    if "masked_digit" not in problem.meta:
        return problem
    operands = json.dumps(
        {name: problem.meta[name] for name in OPERAND_NAMES if name in problem.meta}
    )
    filled = replace_digit(operands, problem.meta["masked_digit"], str(rng.randrange(10)))
    return replace(problem, meta={**problem.meta, **json.loads(filled)})
