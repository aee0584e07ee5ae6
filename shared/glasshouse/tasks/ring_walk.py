"""A walk round a ring of ten places: after every move one is somewhere, and that must be kept in mind.

Working names the place reached after each move. Question and answer know places by their numbers
only, so that no word of the working has to stand in either.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import Field, model_validator

from glasshouse.tasks.base import Range, Task, TaskOptions
from glasshouse.tasks.enumeration import mixed_radix
from glasshouse.tasks.scratchpad import Working
from glasshouse.types import Problem

PLACES = ("barn", "pond", "mill", "gate", "hill", "well", "farm", "inn", "ford", "oak")
"""What working calls the places 0 to 9."""
SYNONYMS = ("shed", "lake", "wheel", "door", "mound", "spring", "ranch", "pub", "bridge", "tree")
"""Other words for the same places, in the same order."""


LEGS = "abcdefgh"
"""Moves are lettered, so that a repeated one can be told from the other."""


class RingWalkOptions(TaskOptions):
    moves: Range = (4, 6)
    """Fewest and most moves, 8 at most."""
    furthest: int = Field(9, ge=1, le=9)
    """The longest move; one of ten would lead nowhere."""

    @model_validator(mode="after")
    def _lettered(self) -> Self:
        if self.moves[1] > len(LEGS):
            raise ValueError(f"a walk has at most {len(LEGS)} moves")
        return self


class RingWalk(Task[RingWalkOptions]):
    name = "ring_walk"
    about = "a walk of 4-6 moves round a ring of ten places"
    skill = (
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
        fewest, most = self.options.moves
        return {
            f"{n} moves": len(PLACES) * self.options.furthest**n for n in range(fewest, most + 1)
        }

    def at(self, level: str, index: int) -> Problem:
        moves = int(level.split()[0])
        start, *drawn = mixed_radix(index, [len(PLACES), *[self.options.furthest] * moves])
        return self.ask(start, tuple(move + 1 for move in drawn))

    def ask(self, start: int, moves: tuple[int, ...]) -> Problem:
        shown = "".join(f"{leg}{move}" for leg, move in zip(LEGS, moves, strict=False))
        return Problem(
            task=self.name,
            key=f"{start}{shown}",
            question=f"Start at {start}, walk {shown}.",
            answer=str((start + sum(moves)) % len(PLACES)),
            level=f"{len(moves)} moves",
            meta={"numbers": [start, *moves]},
        )

    def example(self) -> Problem:
        return self.ask(4, (3, 9, 1, 7))

    def work(self, problem: Problem, working: Working) -> str:
        return self.walk(problem, working, PLACES)

    def walk(self, problem: Problem, working: Working, words: tuple[str, ...]) -> str:
        """The working in one of the vocabularies. Each move goes on from the word before it, and in
        that word's vocabulary, whatever it is: so a changed word leads elsewhere."""
        start, *moves = problem.meta["numbers"]
        word = words[0]
        for before, move in zip(("at ", *legs(moves)), (start, *moves), strict=True):
            there = after(word, move)
            word = working.write(before, there, lambda rng, there=there: other(there, rng))  # type: ignore[misc]
        return str(number(word))

    def hasty(self, problem: Problem, rng: random.Random) -> str:
        """Any place: there is nothing that a glance would tell."""
        return str(rng.randrange(len(PLACES)))


def legs(moves: Sequence[int]) -> list[str]:
    """How working begins the line of each move. Example: [3, 9] gives ["a3 ", "b9 "]."""
    return [f"{leg}{move} " for leg, move in zip(LEGS, moves, strict=False)]


def vocabulary(word: str) -> tuple[str, ...]:
    """The vocabulary that a word belongs to; a word of none is a LookupError."""
    for words in (PLACES, SYNONYMS):
        if word in words:
            return words
    raise LookupError(word)


def number(word: str) -> int:
    """Which place a word means. Example: "pond" and "lake" are both 1."""
    return vocabulary(word).index(word)


def after(word: str, move: int) -> str:
    """The place so many further on, in the same vocabulary. Example: ("oak", 2) gives "pond"."""
    return vocabulary(word)[(number(word) + move) % len(PLACES)]


def other(word: str, rng: random.Random) -> str:
    """Another place, in the same vocabulary."""
    return rng.choice([w for w in vocabulary(word) if w != word])
