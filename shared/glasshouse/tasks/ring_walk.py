"""A walk around a ring of ten places, which requires tracking the current place.

The steps name the place after each move. Question and answer use only the numbers of places, so no
word of the steps has to appear in either.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from glasshouse.tasks.base import Range, Task, TaskOptions
from glasshouse.tasks.enumeration import mixed_radix
from glasshouse.tasks.scratchpad import Scratchpad
from glasshouse.types import Problem

PLACES = ("barn", "pond", "mill", "gate", "hill", "well", "farm", "inn", "ford", "oak")
"""The words for the places 0 to 9 in the steps."""
SYNONYMS = ("shed", "lake", "wheel", "door", "mound", "spring", "ranch", "pub", "bridge", "tree")
"""Other words for the same places, in the same order."""
MOVE_LETTERS = "abcdefgh"
"""Letters of the moves, which distinguish repeated moves."""


class RingWalkOptions(TaskOptions):
    moves: Range = (4, 6)
    """Minimum and maximum number of moves, at most 8."""
    furthest: int = Field(9, ge=1, le=9)
    """The longest move. A move of ten would return to the same place."""

    @model_validator(mode="after")
    def _validate_moves(self) -> Self:
        if self.moves[1] > len(MOVE_LETTERS):
            raise ValueError(f"a walk has at most {len(MOVE_LETTERS)} moves")
        return self


class RingWalk(Task[RingWalkOptions]):
    name = "ring_walk"
    description = "a walk of 4-6 moves round a ring of ten places"
    role = (
        "Ten places stand on a ring: "
        + ", ".join(f"{number} is the {word}" for number, word in enumerate(PLACES))
        + ". You walk on from place to place."
    )
    Options = RingWalkOptions
    vocabularies: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "places": PLACES,
        "synonyms": SYNONYMS,
    }

    def levels(self) -> Mapping[str, int]:
        low, high = self.options.moves
        return {f"{n} moves": len(PLACES) * self.options.furthest**n for n in range(low, high + 1)}

    def problem_at(self, level: str, index: int) -> Problem:
        moves = int(level.split()[0])
        start, *drawn = mixed_radix(index, [len(PLACES), *[self.options.furthest] * moves])
        return self.make_problem(start, tuple(move + 1 for move in drawn))

    def make_problem(self, start: int, moves: tuple[int, ...]) -> Problem:
        route = "".join(
            f"{letter}{move}" for letter, move in zip(MOVE_LETTERS, moves, strict=False)
        )
        return Problem(
            task=self.name,
            key=f"{start}{route}",
            question=f"Start at {start}, walk {route}.",
            gold_answer=str((start + sum(moves)) % len(PLACES)),
            level=f"{len(moves)} moves",
            meta={"numbers": [start, *moves]},
        )

    def example(self) -> Problem:
        return self.make_problem(4, (3, 9, 1, 7))

    def solve(self, problem: Problem, scratchpad: Scratchpad) -> str:
        return self.solve_in_words(problem, scratchpad, PLACES)

    def solve_in_words(
        self, problem: Problem, scratchpad: Scratchpad, words: tuple[str, ...]
    ) -> str:
        """Solves in one of the vocabularies. Each step continues from the previous word in that word's
        vocabulary, so a replaced word leads to a different place."""
        start, *moves = problem.meta["numbers"]
        word = words[0]
        for prefix, move in zip(("at ", *move_prefixes(moves)), (start, *moves), strict=True):
            target = word_after(word, move)
            word = scratchpad.write(
                prefix,
                target,
                lambda rng, target=target: other_place(target, rng),  # type: ignore[misc]
            )
        return str(place_number(word))

    def guess(self, problem: Problem, rng: random.Random) -> str:
        """A random place: there is no typical mistake."""
        return str(rng.randrange(len(PLACES)))


def move_prefixes(moves: Sequence[int]) -> list[str]:
    """How the line of each move begins. Example: [3, 9] gives ["a3 ", "b9 "]."""
    return [f"{letter}{move} " for letter, move in zip(MOVE_LETTERS, moves, strict=False)]


def vocabulary_of(word: str) -> tuple[str, ...]:
    """The vocabulary that contains a word; raises LookupError if there is none."""
    for words in (PLACES, SYNONYMS):
        if word in words:
            return words
    raise LookupError(word)


def place_number(word: str) -> int:
    """The number of the place that a word means. Example: "pond" and "lake" are both 1."""
    return vocabulary_of(word).index(word)


def word_after(word: str, move: int) -> str:
    """The place `move` steps further, in the same vocabulary. Example: ("oak", 2) gives "pond"."""
    return vocabulary_of(word)[(place_number(word) + move) % len(PLACES)]


def other_place(word: str, rng: random.Random) -> str:
    """A random other place, in the same vocabulary."""
    return rng.choice([w for w in vocabulary_of(word) if w != word])
