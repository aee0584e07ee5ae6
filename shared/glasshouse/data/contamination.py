"""Was it trained on? Problems matched against what a run's record says it was asked in training.

The evaluation set is small and the record is long, so that the record is read past the set: memory
is that of the set, whatever the run's length, and each step is read once. Three ways to be found out:

- `key`: the same canonical key of the same task (`345 * 12` is `12 * 345`);
- `question`: the same words, whatever the task is called, but for case, spacing and punctuation;
- `reordered`: for rows without a key of their own (foreign files): the same words and numbers in
  another order, and the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glasshouse import randomness
from glasshouse.types import Problem

_WORD = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)?|[^\w\s]")
_SAME = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"})
_QUIET = frozenset(".,;:!?\"'`")


@dataclass(frozen=True, slots=True)
class Leak:
    """A problem that the run was trained on."""

    problem: Problem
    step: int
    """The first training step that asked it."""
    how: str
    """`key`, `question` or `reordered`."""
    seen_as: str
    """The question as training asked it."""


class Audit:
    """Problems to be kept apart from training, and which of them were not.

    Example:
        audit = Audit(held_out)
        audit.read(reading.read(folder, "train"))
        clean = audit.clean(200)
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        self.leaks: dict[int, Leak] = {}  # by place in the list
        self.last_step = -1
        self.index: dict[Hashable, list[int]] = {}
        for place, problem in enumerate(self.problems):
            for identity, _ in identities(problem):
                self.index.setdefault(identity, []).append(place)

    def read(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Go through training rollouts, as the record holds them; returns how many problems."""
        count, previous = 0, None
        for row in rows:
            self.last_step = max(self.last_step, row["step"])
            here = (row["step"], row["task"], row["key"], row["question"])
            if here == previous:  # another sample of the same group
                continue
            count, previous = count + 1, here
            asked = Problem(
                task=row["task"], key=row["key"], question=row["question"], answer=row["gold"]
            )
            for identity, how in identities(asked, reordered=True):
                for place in self.index.get(identity, ()):
                    problem = self.problems[place]
                    if how == "key" or not _told_apart(problem, asked):
                        self.leaks.setdefault(
                            place, Leak(problem, row["step"], how, row["question"])
                        )
        return count

    def clean(self, count: int) -> list[Problem]:
        """The first `count` problems that were not trained on, fewer if there are fewer."""
        return [p for place, p in enumerate(self.problems) if place not in self.leaks][:count]


def identities(problem: Problem, reordered: bool = False) -> Iterator[tuple[Hashable, str]]:
    """What a problem can be recognised by, and how that is called."""
    yield ("key", problem.task, problem.key), "key"
    found = words(problem.question)
    yield ("question", *found), "question"
    if reordered or problem.key == problem.question:
        yield ("reordered", *sorted(found), problem.answer.strip()), "reordered"


def _told_apart(one: Problem, other: Problem) -> bool:
    """Tasks whose key is a hash of the question (reasoning-gym's) tell problems apart to the letter,
    where words alike but for case or punctuation may be different problems."""
    return one.task == other.task and one.key == f"{randomness.key(one.question):016x}"


def words(question: str) -> list[str]:
    """A question's words, numbers and signs, without case, spacing and punctuation.

    Example: `words("What is 1,234 × 5?")` is `["what", "is", "1234", "*", "5"]`
    """
    text = question.translate(_SAME).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return [word for word in _WORD.findall(text) if word not in _QUIET]
