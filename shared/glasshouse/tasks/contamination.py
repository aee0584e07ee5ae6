"""Contamination check: which held-out problems were asked in training, according to the rollout log.

A problem is contaminated if a training problem has

- `key`: the same task and canonical key (`345 * 12` is `12 * 345`);
- `question`: the same words, ignoring case, spacing and punctuation, under any task name;
- `reordered`: for problems without a canonical key (foreign files), the same words and numbers in
  another order, and the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glasshouse import randomness
from glasshouse.types import Problem

_TOKEN = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[^\w\s]")
_EQUIVALENT = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"})
_PUNCTUATION = frozenset(".,;:!?\"'`")


@dataclass(frozen=True, slots=True)
class Leak:
    """A held-out problem that the run was trained on."""

    problem: Problem
    step: int
    """The first training step that asked it."""
    match: str
    """`key`, `question` or `reordered`."""
    training_question: str
    """The question in training."""


class ContaminationCheck:
    """Matches held-out problems against training rollouts.

    Example:
        check = ContaminationCheck(validation)
        check.scan(read_rows(folder, "train"))
        clean = check.clean_problems(200)
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        self.leaks: dict[int, Leak] = {}  # by index in self.problems
        self.last_step = -1
        self.index: dict[Hashable, list[int]] = {}
        for i, problem in enumerate(self.problems):
            for fingerprint, _ in fingerprints(problem):
                self.index.setdefault(fingerprint, []).append(i)

    def scan(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Scans rows of the rollout log; returns the number of training problems."""
        count, previous = 0, None
        for row in rows:
            self.last_step = max(self.last_step, row["step"])
            current = (row["step"], row["task"], row["key"], row["question"])
            if current == previous:  # another sample of the same group
                continue
            count, previous = count + 1, current
            names = ("task", "key", "question", "gold_answer")
            trained = Problem(**{name: row[name] for name in names})
            for fingerprint, match in fingerprints(trained, reordered=True):
                for i in self.index.get(fingerprint, ()):
                    problem = self.problems[i]
                    # a key that hashes the question (reasoning-gym) alone identifies problems of its task:
                    # there, questions that differ in case or punctuation may be different problems
                    has_hashed_key = problem.key == f"{randomness.key(problem.question):016x}"
                    if match == "key" or problem.task != trained.task or not has_hashed_key:
                        leak = Leak(problem, row["step"], match, row["question"])
                        self.leaks.setdefault(i, leak)
        return count

    def clean_problems(self, count: int) -> list[Problem]:
        """The first `count` problems that were not trained on, or all if there are fewer."""
        return [p for i, p in enumerate(self.problems) if i not in self.leaks][:count]


def fingerprints(problem: Problem, reordered: bool = False) -> Iterator[tuple[Hashable, str]]:
    """The values that identify a problem, each with the kind of match."""
    yield ("key", problem.task, problem.key), "key"
    tokens = normalize_question(problem.question)
    yield ("question", *tokens), "question"
    if reordered or problem.key == problem.question:
        yield ("reordered", *sorted(tokens), problem.gold_answer.strip()), "reordered"


def normalize_question(question: str) -> list[str]:
    """The words, numbers and signs of a question, without case, spacing and punctuation.

    Example: `normalize_question("What is 1,234 × 5?")` is `["what", "is", "1234", "*", "5"]`
    """
    text = question.translate(_EQUIVALENT).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return [token for token in _TOKEN.findall(text) if token not in _PUNCTUATION]
