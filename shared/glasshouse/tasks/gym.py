"""reasoning-gym's procedural tasks, as `gym.<dataset>` (extra `gym`): our seeds, keys and grading.

reasoning-gym makes item `i` of a data set from `Random(seed + i)`, so data sets with neighbouring
seeds share items. Here each problem is the only item of a data set of its own, whose seed is a
hash of the draw. What is left out: data sets whose problems have many right answers (`countdown`),
since we compare with one gold answer, grids (`sudoku`), and single problems whose answer does not
fit on one line. Its tolerances and partial credit are not used.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from typing import Any, Self

from pydantic import ConfigDict

from glasshouse import randomness
from glasshouse.errors import TaskError, nearest
from glasshouse.tasks.base import MODES, Mode, Task, TaskOptions
from glasshouse.tasks.scratchpad import Working
from glasshouse.types import AnswerKind, Problem, Style

MANY_ANSWERS = frozenset(
    """
    advanced_geometry boxnet coin_flip complex_arithmetic countdown cryptarithm graph_color
    group_anagrams intermediate_integration jugs knight_swap n_queens number_format
    palindrome_generation palindrome_partitioning polynomial_equations polynomial_multiplication
    power_function propositional_logic puzzle24 quantum_lock rubiks_cube rush_hour shortest_path
    simple_integration sokoban tower_of_hanoi word_ladder
    """.split()  # noqa: SIM905
)
"""Data sets that take other answers than their gold one as right, by what `score_answer` does:
another path, another form of the same expression, a number that is only near."""
GRIDS = frozenset(
    """
    arc_agi binary_matrix futoshiki kakurasu manipulate_matrix mini_sudoku modulo_grid pool_matrix
    rearc rotate_matrix sudoku survo
    """.split()  # noqa: SIM905
)
"""Data sets whose answers are grids of several lines."""
UNSTABLE = frozenset({"isomorphic_strings", "ransom_note"})
"""Data sets that walk over sets of strings, so that one seed differs from process to process."""
OURS = ("seed", "size")
"""Settings of every data set that are not a user's to choose."""
LONGEST = 400
"""Characters that an answer may have; the parser reads one line of about 500."""
ATTEMPTS = 20
"""How many items in a row may have no answer of one line."""

_NUMBER = r"-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,12})?"
_LIST = re.compile(rf"\[\s*({_NUMBER}(?:\s*,\s*{_NUMBER}){{0,99}})\s*\]")


class GymOptions(TaskOptions):
    """The data set's own settings, under reasoning-gym's names."""

    model_config = ConfigDict(extra="allow", frozen=True)


class GymTask(Task[GymOptions]):
    """Example: `make("gym.chain_sum", {"max_terms": 3})`."""

    name: str  # type: ignore[misc]  # each data set has its own
    about = "a procedural task of reasoning-gym"
    skill = "You solve a reasoning problem."
    form = "<answer>"
    kind = AnswerKind.TEXT
    Options = GymOptions

    @classmethod
    def named(cls, name: str, options: Mapping[str, Any]) -> Self:
        """The task of that data set, known to work: it has made its first problem."""
        known, dataset = _registry(), name.removeprefix("gym.")
        usable = known.keys() - MANY_ANSWERS - GRIDS - UNSTABLE - {"composite"}
        if dataset not in known:
            raise TaskError(f'reasoning-gym has no data set "{dataset}".{nearest(dataset, usable)}')
        if dataset not in usable:
            raise TaskError(f"{name} cannot be used: {_why_not(dataset)}. Choose another data set.")
        settings = [f.name for f in fields(known[dataset][1]) if f.name not in OURS]
        for option in options:
            if option in OURS:
                raise TaskError(f'{name}: "{option}" is set by Glasshouse; leave it out.')
            if option not in settings:
                raise TaskError(f'{name} has no option "{option}".{nearest(option, settings)}')
        task = cls(GymOptions(**options))
        task.name = name
        task.example()
        return task

    def levels(self) -> Mapping[str, int | None]:
        return {"any": None}

    def at(self, level: str, index: int) -> Problem:
        """Problem number `index`: the first item from there on whose answer fits on one line."""
        for attempt in range(ATTEMPTS):
            item = self._item(randomness.key("gym", self.name, index, attempt) >> 32)
            answer = item["answer"]
            if (
                isinstance(answer, str)
                and 0 < len(answer.strip()) <= LONGEST
                and "\n" not in answer
            ):
                return self.ask(item["question"], answer.strip(), level)
        raise TaskError(
            f"{self.name} cannot be graded: none of {ATTEMPTS} problems has an answer of one line "
            f"and at most {LONGEST} characters."
        )

    def _item(self, seed: int) -> Mapping[str, Any]:
        """32 bits of seed: `pool_matrix` hands it to numpy, which takes no more.

        The global generator is seeded meanwhile, since `list_functions` draws from it, and what
        `bf` prints is swallowed.
        """
        kind, settings = _registry()[self.name.removeprefix("gym.")]
        options = self.options.model_dump()
        before = random.getstate()
        random.seed(seed)
        try:
            with redirect_stdout(StringIO()):
                item: Mapping[str, Any] = kind(settings(**options, seed=seed, size=1))[0]
        except Exception as error:  # its checks are asserts; a wrong type fails anywhere
            raise TaskError(
                f"{self.name} could not make a problem with the options {options}: "
                f"{str(error) or type(error).__name__}."
            ) from error
        finally:
            random.setstate(before)
        return item

    def ask(self, question: str, answer: str, level: str = "any") -> Problem:
        kind, decimals = AnswerKind.TEXT, 0
        if re.fullmatch(_NUMBER, answer):
            kind, decimals = AnswerKind.NUMBER, len(answer.partition(".")[2])
        elif listed := _LIST.fullmatch(answer):
            kind, answer = AnswerKind.SEQUENCE, ", ".join(listed[1].replace(",", " ").split())
        return Problem(
            task=self.name,
            key=f"{randomness.key(question):016x}",
            question=question,
            answer=answer,
            kind=kind,
            decimals=decimals,
            level=level,
        )

    def example(self) -> Problem:
        return self.at("any", 0)

    def system(self, style: Style) -> str:
        """Without a worked example: reasoning-gym gives answers, not solutions."""
        if style is Style.DIRECT:
            return super().system(style)
        return f"{self.skill} Solve it step by step, then end with [ANSWER] {self.form}."

    @property
    def modes(self) -> Mapping[str, Mode]:
        return {"direct": MODES["direct"]}

    def work(self, problem: Problem, working: Working) -> str:
        raise TaskError(f"{self.name} has no working to show, only answers.")

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        raise TaskError(f"{self.name} has no typical wrong answers to show.")


def _why_not(dataset: str) -> str:
    if dataset in GRIDS:
        return "its answers are grids of several lines, and Glasshouse reads one"
    if dataset in MANY_ANSWERS:
        return "other answers than its gold ones are right too, and Glasshouse compares with those"
    if dataset in UNSTABLE:
        return "the same seed gives other problems in another process"
    return "it is a mixture of others, each a task of its own here"


def _registry() -> Mapping[str, tuple[Any, Any]]:
    """Data set and settings classes by name."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise TaskError(
            "Tasks named gym.… need reasoning-gym, which is not installed: "
            'pip install "glasshouse[gym]" (or: pip install reasoning-gym==0.1.25).'
        ) from None
    return DATASETS
