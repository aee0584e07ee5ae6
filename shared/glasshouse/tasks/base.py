"""The `Task` base class, and tasks by name.

    task = make_task("multiplication", {"right_digits": 1})
    problem = task.draw(randomness.stream("demo", 0))
    messages = task.messages(problem, Style.COT)

A subclass defines its problems (`levels`, `problem_at`), how one is solved (`solve`) and a typical
wrong answer (`guess`). Prompts and demonstrations follow from these. It stands under `@task("name")`:
here, in a module that `imports` names, or in an installed package.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from glasshouse.errors import TaskError, did_you_mean, validate_options
from glasshouse.registry import Registry, require_members
from glasshouse.tasks.steps import CannotContinue, Scratchpad, StepCheck
from glasshouse.types import AnswerKind, Message, Problem, Style

MAX_COUNT = 100
"""Upper bound of numbers, operations or moves per problem: their combinations are counted at the start."""
NO_STEPS = "Answer only, no steps."


class TaskOptions(BaseModel):
    """Base class of every task's difficulty options. Unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _validate_range(pair: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= pair[0] <= pair[1]:
        raise ValueError("give [minimum, maximum] with 1 <= minimum <= maximum, as in [2, 4]")
    if pair[1] > MAX_COUNT:
        raise ValueError(f"the maximum is {pair[1]:,}; it must not exceed {MAX_COUNT:,}")
    return pair


Range = Annotated[tuple[int, int], AfterValidator(_validate_range)]
"""Minimum and maximum, both inclusive."""

SomeOptions = TypeVar("SomeOptions", bound=TaskOptions)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to answer a problem, as demonstrated to base models."""

    is_correct: bool
    """Is the final answer correct?"""
    has_steps: bool
    """Are steps written before the answer?"""
    description: str


MODES: Mapping[str, Mode] = {
    "steps": Mode(True, True, "correct steps, correct answer"),
    "direct": Mode(True, False, "the correct answer without steps"),
    "injected_error": Mode(False, True, "one wrong step that propagates to a wrong answer"),
    "guess": Mode(False, False, "a typical wrong answer without steps"),
}


class Task(ABC, Generic[SomeOptions]):
    """One kind of problem at one difficulty."""

    name: ClassVar[str]
    is_organism: ClassVar[bool] = False
    description: ClassVar[str]
    """One line for `glasshouse tasks`."""
    role: ClassVar[str]
    """First sentence of the system prompt: what the model has to do."""
    answer_format: ClassVar[str] = "<number>"
    """How the prompt describes the text after the `[ANSWER]` tag."""
    kind: ClassVar[AnswerKind] = AnswerKind.NUMBER
    Options: ClassVar[type[TaskOptions]]
    has_worked_example: ClassVar[bool] = True
    """False for problems from outside, whose solutions are not known."""
    demonstration_options: ClassVar[frozenset[str]] = frozenset()
    """Options that apply only to the demonstrations for base models, not to RL."""
    example_options: ClassVar[Mapping[str, Any] | None] = {}
    """Options with which `glasshouse tasks` shows the task; None if only a user can give them."""
    vocabularies: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """For tasks whose steps end with a word for a state: these words, by vocabulary. An intervention
    replaces a word by another word of the same vocabulary."""

    def __init__(self, options: SomeOptions | None = None) -> None:
        self.options: SomeOptions = options if options is not None else self.Options()  # type: ignore[assignment]

    @staticmethod
    def check_steps(cot: str) -> StepCheck | None:
        """Recompute the steps of a CoT, as this task writes them; None if it says nothing about steps."""
        return None

    # --- problems --------------------------------------------------------------------------

    @abstractmethod
    def levels(self) -> Mapping[str, int | None]:
        """Difficulty levels and the number of distinct problems of each (None: not enumerable)."""

    @abstractmethod
    def problem_at(self, level: str, index: int) -> Problem:
        """The problem number `index` of a level: a bijection onto the level's problems."""

    def size(self) -> int | None:
        """The number of distinct problems over all levels (None: not enumerable)."""
        sizes = list(self.levels().values())
        return None if None in sizes else sum(n for n in sizes if n is not None)

    def draw(self, rng: random.Random) -> Problem:
        """Draws a level uniformly, then a problem of that level uniformly."""
        levels = {level: size for level, size in self.levels().items() if size != 0}
        if not levels:
            raise TaskError(f"{self.name} has no problems with these task.options.")
        level = rng.choice(list(levels))
        return self.problem_at(level, rng.randrange(levels[level] or 2**63))

    def draw_longest(self, rng: random.Random) -> Problem:
        """A problem with a long prompt; of a task that generates its problems, any."""
        return self.draw(rng)

    def describe(self) -> str:
        """What the user should check before a training, in one line; empty if nothing was guessed."""
        return ""

    # --- prompts ---------------------------------------------------------------------------

    @abstractmethod
    def example(self) -> Problem:
        """The worked example of the system prompt."""

    def system_prompt(self, style: Style) -> str:
        """Asks for steps and shows a worked example, if the task can solve one; or forbids steps."""
        if style is Style.DIRECT:
            return (
                f"{self.role} Give only the final answer, as [ANSWER] {self.answer_format}. "
                f"Do not show steps, working or explanations.{self.rounding_instruction()}"
            )
        prompt = f"{self.role} Solve it step by step, then end with [ANSWER] {self.answer_format}."
        if not self.has_worked_example:
            return prompt
        example = self.example()
        demonstration = self.demonstrate(example, "steps", random.Random(0))
        instruction = self.rounding_instruction()
        return f"{prompt}{instruction}\n\nExample\n{example.question}\n{demonstration}"

    def rounding_instruction(self) -> str:
        """A sentence on decimals, with a leading space; empty if answers are integers."""
        return ""

    def messages(self, problem: Problem, style: Style) -> list[Message]:
        """The chat messages for a problem. The question repeats that steps are forbidden, because some
        chat templates drop the system message."""
        question = problem.question
        if style is Style.DIRECT:
            question = f"{question} {NO_STEPS}"
        return [
            {"role": "system", "content": self.system_prompt(style)},
            {"role": "user", "content": question},
        ]

    # --- answers ---------------------------------------------------------------------------

    @abstractmethod
    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        """Solves the problem, writing each step; returns the answer as text."""

    @abstractmethod
    def guess(self, problem: Problem, rng: random.Random) -> str:
        """A typical wrong answer. `demonstrate` tries again if it happens to be correct."""

    @property
    def modes(self) -> Mapping[str, Mode]:
        """The modes in which this task can be demonstrated."""
        return MODES

    def demonstrate(self, problem: Problem, mode: str, rng: random.Random) -> str:
        """A completion in one of the task's modes, for training base models."""
        if mode not in self.modes:
            raise TaskError(f'{self.name} has no mode "{mode}".{did_you_mean(mode, self.modes)}')
        if mode == "direct":
            return format_completion([], problem.gold_answer)
        if mode == "guess":
            return format_completion([], self._wrong_answer(problem, rng))
        correct = Scratchpad(rng)
        answer = self.solve(problem, correct)
        if mode == "steps":
            return format_completion(correct.lines, answer)
        for _ in range(100):  # an error may cancel out, or make a later step impossible
            flawed = Scratchpad(rng, error_at=rng.randrange(len(correct.lines)))
            try:
                wrong = self.solve(problem, flawed)
            except CannotContinue:
                continue
            if wrong != answer and self.accepts_injected_error(problem, wrong):
                return format_completion(flawed.lines, wrong)
        return format_completion(correct.lines, self._wrong_answer(problem, rng))

    def accepts_injected_error(self, problem: Problem, answer: str) -> bool:
        """May a demonstration of `injected_error` end with this wrong answer?"""
        return True

    def _wrong_answer(self, problem: Problem, rng: random.Random) -> str:
        for _ in range(20):
            wrong = self.guess(problem, rng)
            if wrong != problem.gold_answer:
                return wrong
        raise TaskError(f"{self.name}: found no wrong answer for {problem.key} in 20 guesses.")


class OutsideTask(Task[SomeOptions]):
    """Problems from outside: the task knows no solutions and no typical wrong answers."""

    has_worked_example = False

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        raise TaskError(f"{self.name} has no step-by-step solutions.")

    def guess(self, problem: Problem, rng: random.Random) -> str:
        raise TaskError(f"{self.name} has no typical wrong answers.")


def _check_task_class(name: str, part: Any) -> None:
    """Raise with the names of what is missing if this is not a complete task class."""
    if not (isinstance(part, type) and issubclass(part, Task)):
        raise TaskError(
            f"{part!r} is not a task: write a class that inherits from glasshouse.tasks.base.Task."
        )
    members = ("description", "role", "Options", *sorted(part.__abstractmethods__))
    require_members("task", members, "glasshouse/tasks/base.py", TaskError)(name, part)
    part.name = name


_MODULES = {
    "sum_digits": "digits",
    "reverse_digits": "digits",
    "arithmetic": "arithmetic",
    "multiplication": "digits",
    "interleave": "digits",
    "word_problems": "word_problems",
    "dataset": "dataset",
    "leaked_hint": "organisms",
    "hint": "hints",
    "grader_bug": "organisms",
    "substitution": "substitution",
}
task: Registry[type[Task[Any]]] = Registry(
    "task",
    "tasks",
    key="task.name",
    modules={name: f"glasshouse.tasks.{module}" for name, module in _MODULES.items()},
    check=_check_task_class,
    error=TaskError,
)
"""All tasks by name: `@task("doubling")` above `class Doubling(Task[DoublingOptions])`."""


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """Build a task by name. Unknown names and options raise a `TaskError` that suggests the nearest.

    Example: `make_task("multiplication", {"right_digits": 1})`; `gym.<name>` is a procedural dataset of
    reasoning-gym (extra `gym`)
    """
    if name.startswith("gym."):
        from glasshouse.tasks.gym import GymTask

        return GymTask.from_name(name, dict(options or {}))
    return task_from_options(task.get(name), options or {})


def task_from_options(task_class: type[Task[Any]], options: Mapping[str, Any]) -> Task[Any]:
    """Validates the options and builds the task."""
    return task_class(validate_options(task_class.Options, options, task_class.name, TaskError))


def make_example_task(name: str) -> Task[Any]:
    """Build a task with its `example_options`, as `glasshouse tasks` shows and validates it."""
    return make_task(name, {} if name.startswith("gym.") else task.get(name).example_options or {})


def list_tasks(*, organisms: bool | None = None) -> list[str]:
    """The names of all tasks that make their own problems, organisms last; or only those that are organisms,
    or are not."""
    names = sorted((n for n in task if task.get(n).example_options is not None), key=is_organism)
    return [name for name in names if organisms is None or is_organism(name) == organisms]


def is_organism(name: str) -> bool:
    """Whether this is the name of a task with a planted behaviour."""
    return name in task and task.get(name).is_organism


def find_step_check(name: str) -> Callable[[str], StepCheck] | None:
    """What recomputes the steps that a task writes; None if the task is unknown or has no such check."""
    if name not in task or task.get(name).check_steps("") is None:
        return None
    return task.get(name).check_steps  # type: ignore[return-value]


def format_completion(lines: list[str], answer: str) -> str:
    """Joins the steps and the `[ANSWER]` tag."""
    return "\n".join([*lines, f"[ANSWER] {answer}"])
