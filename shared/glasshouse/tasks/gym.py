"""reasoning-gym's procedural datasets as tasks `gym.<dataset>` (extra `gym`).

Seeds, keys and grading are Glasshouse's own. reasoning-gym makes item `i` of a dataset from
`Random(seed + i)`, so datasets with adjacent seeds share items. Here each problem is the only item of a
dataset whose seed is a hash of the draw. Datasets that cannot be graded by one gold answer are excluded,
and single problems whose answer has several lines. reasoning-gym's tolerances and partial credit are
not used.
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
from glasshouse.errors import TaskError, did_you_mean, import_extra
from glasshouse.tasks.base import MODES, Mode, OutsideTask, TaskOptions
from glasshouse.types import AnswerKind, Problem

EXCLUDED = {
    "it accepts several answers, and Glasshouse compares with one gold answer": """
    advanced_geometry boxnet coin_flip complex_arithmetic countdown cryptarithm graph_color
    group_anagrams intermediate_integration jugs knight_swap n_queens number_format
    palindrome_generation palindrome_partitioning polynomial_equations polynomial_multiplication
    power_function propositional_logic puzzle24 quantum_lock rubiks_cube rush_hour shortest_path
    simple_integration sokoban tower_of_hanoi word_ladder
    """,
    "its answers are grids, and Glasshouse reads only one line": """
    arc_agi binary_matrix futoshiki kakurasu manipulate_matrix mini_sudoku modulo_grid pool_matrix
    rearc rotate_matrix sudoku survo
    """,
    # they iterate over sets of strings
    "the same seed gives different problems in different processes": "isomorphic_strings ransom_note",
    "it is a mixture of other datasets; use those directly": "composite",
}
WHY_EXCLUDED = {name: reason for reason, names in EXCLUDED.items() for name in names.split()}
"""Datasets that cannot be used, with the reason."""
MAX_ANSWER_CHARS = 400
"""Longest answer; the parser reads one line of about 500 characters."""
MAX_ATTEMPTS = 20
"""Items to try until one has a short answer of one line."""

_NUMBER = r"-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,12})?"
_LIST = re.compile(rf"\[\s*({_NUMBER}(?:\s*,\s*{_NUMBER}){{0,99}})\s*\]")


class GymOptions(TaskOptions):
    """The dataset's settings, under reasoning-gym's names."""

    model_config = ConfigDict(extra="allow", frozen=True)


class GymTask(OutsideTask[GymOptions]):
    """Example: `make("gym.chain_sum", {"max_terms": 3})`."""

    name: str  # type: ignore[misc]  # one per dataset
    description = "a procedural task of reasoning-gym"
    role = "You solve a reasoning problem."
    answer_format = "<answer>"
    kind = AnswerKind.TEXT
    Options = GymOptions

    @classmethod
    def from_name(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Builds the task of a dataset and generates one problem to validate the options."""
        datasets, dataset = _dataset_registry(), name.removeprefix("gym.")
        if dataset not in datasets:
            suggestion = did_you_mean(dataset, datasets.keys() - WHY_EXCLUDED.keys())
            raise TaskError(f'reasoning-gym has no dataset "{dataset}".{suggestion}')
        if dataset in WHY_EXCLUDED:
            raise TaskError(
                f"{name} cannot be used: {WHY_EXCLUDED[dataset]}. Choose another dataset."
            )
        # seed and size are set below
        settings = {f.name for f in fields(datasets[dataset][1])} - {"seed", "size"}
        for option in options:
            if option not in settings:
                raise TaskError(f'{name} has no option "{option}".{did_you_mean(option, settings)}')
        task = cls(GymOptions(**options))
        task.name = name
        task.example()
        return task

    def levels(self) -> Mapping[str, int | None]:
        return {"any": None}

    def problem_at(self, level: str, index: int) -> Problem:
        """Problem number `index`: the first of its items whose answer is short and on one line."""
        for attempt in range(MAX_ATTEMPTS):
            item = self._item(randomness.key("gym", self.name, index, attempt) >> 32)
            answer = item["answer"] if isinstance(item["answer"], str) else ""
            if 0 < len(answer.strip()) <= MAX_ANSWER_CHARS and "\n" not in answer:
                return self.make_problem(item["question"], answer.strip(), level)
        raise TaskError(
            f"{self.name} cannot be graded: none of {MAX_ATTEMPTS} problems has an answer on one line "
            f"with at most {MAX_ANSWER_CHARS} characters."
        )

    def _item(self, seed: int) -> Mapping[str, Any]:
        """Generates one item. The seed has 32 bits, because numpy accepts no more.

        Seeds the global generator, which `list_functions` uses, and restores it afterwards;
        suppresses what `bf` prints.
        """
        dataset_class, config_class = _dataset_registry()[self.name.removeprefix("gym.")]
        options = self.options.model_dump()
        saved_state = random.getstate()
        random.seed(seed)
        try:
            with redirect_stdout(StringIO()):
                return dataset_class(config_class(**options, seed=seed, size=1))[0]
        except Exception as error:  # invalid options raise AssertionError or anything else
            raise TaskError(
                f"{self.name} could not generate a problem with the options {options}: "
                f"{str(error) or type(error).__name__}."
            ) from error
        finally:
            random.setstate(saved_state)

    def make_problem(self, question: str, answer: str, level: str = "any") -> Problem:
        kind, decimals = AnswerKind.TEXT, 0
        if re.fullmatch(_NUMBER, answer):
            kind, decimals = AnswerKind.NUMBER, len(answer.partition(".")[2])
        elif sequence := _LIST.fullmatch(answer):
            kind, answer = AnswerKind.SEQUENCE, ", ".join(sequence[1].replace(",", " ").split())
        return Problem(
            task=self.name,
            key=f"{randomness.key(question):016x}",
            question=question,
            gold_answer=answer,
            answer_kind=kind,
            decimals=decimals,
            level=level,
        )

    def example(self) -> Problem:
        return self.problem_at("any", 0)

    @property
    def modes(self) -> Mapping[str, Mode]:
        return {"direct": MODES["direct"]}


def _dataset_registry() -> Mapping[str, tuple[Any, Any]]:
    """Dataset and config classes by name."""
    (factory,) = import_extra("gym", "A gym.* task", "reasoning_gym.factory", error=TaskError)
    return factory.DATASETS
