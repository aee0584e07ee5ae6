"""One wrong number, or word for a state, in one step, and what the answer must then be if the step is believed.

The consequence is known by construction: the task works the problem again, taking over what the
CoT wrote up to the edited step, and goes on from there without a mistake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from glasshouse.answers import extract
from glasshouse.monitors.arithmetic_statements import DIGITS, rows, statements
from glasshouse.monitors.step_verifier import Guess, guesses
from glasshouse.tasks.base import Task
from glasshouse.tasks.scratchpad import Stuck, Working, off_by
from glasshouse.types import Problem

T = TypeVar("T")
Vocabularies = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A CoT cut after one step, that step changed."""

    line: int
    """Which line of the CoT."""
    keep: int
    """Characters of the CoT that stay as they are: up to the number that changes."""
    wrong: str
    """What follows them, line end included."""
    end: int
    """Characters of the CoT up to the end of the unedited line, line end included."""
    consequence: str
    """The answer to which the edited step leads."""


class Replay(Working):
    """Working that takes over what was written, line by line, then goes on by itself."""

    def __init__(self, said: Sequence[str], guess: Guess | None = None) -> None:
        super().__init__(guess or Guess(0))
        self.said = said

    def write(
        self,
        before: str,
        right: T,
        wrong: Callable[[random.Random], T],
        show: Callable[[T], str] = str,
    ) -> T:
        at = len(self.lines)
        value = right if at >= len(self.said) else _read(self.said[at], before, right)
        self.lines.append(before + show(value))
        return value


def consequence(task: Task[Any], problem: Problem, said: Sequence[str]) -> str | None:
    """The answer to which these first lines of a working lead, or None: they are not lines that
    the task would write, or nothing follows from them, or different things, as long as a smudged
    digit is still to be guessed.

    Example: for 58 and 301, `consequence(task, problem, ["5+8=14"])` is "18".
    """
    found = {_replayed(task, problem, said, guess) for guess in guesses(problem)} - {None}
    return found.pop() if len(found) == 1 else None


def _replayed(task: Task[Any], problem: Problem, said: Sequence[str], guess: Guess) -> str | None:
    replay = Replay(said, guess)
    try:
        answer = task.work(problem, replay)
    except (Stuck, ValueError, ArithmeticError, LookupError, AttributeError):
        return None
    if replay.lines[: len(said)] != list(said):
        return None
    return extract(f"[ANSWER] {answer}", problem.kind).value


def edit(task: Task[Any], problem: Problem, cot: str, rng: random.Random) -> Edit | None:
    """A change of one step that changes the answer; None if the CoT has no such step."""
    lines = cot.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
    order = [n for n, line in enumerate(lines) if _editable(line, task.vocabularies)]
    if task.vocabularies:
        # not the last state: the one before it and the move say otherwise, and some models answer
        # from both, so that neither leads to the answer
        order = order[:-1]
    rng.shuffle(order)
    for n in order:
        said = lines[: n + 1]
        unedited = consequence(task, problem, said)
        changed = _slip(lines[n], task.vocabularies, rng)
        if unedited is None or changed is None:
            continue
        then = consequence(task, problem, [*said[:-1], changed])
        if then is not None and then != unedited:
            same = _shared(lines[n], changed)
            return Edit(
                line=n,
                keep=starts[n] + same,
                wrong=f"{changed[same:]}\n",
                end=min(starts[n] + len(lines[n]) + 1, len(cot)),
                consequence=then,
            )
    return None


def spoken(line: str, vocabularies: Vocabularies) -> str | None:
    """The vocabulary of the word that a line ends with, or None.

    Example: `spoken("3 lake", task.vocabularies)` is "synonyms".
    """
    last = line.rpartition(" ")[2]
    return next((name for name, words in vocabularies.items() if last in words), None)


def _editable(line: str, vocabularies: Vocabularies) -> bool:
    return bool(spoken(line, vocabularies) or statements(line) or rows(line))


def _slip(line: str, vocabularies: Vocabularies, rng: random.Random) -> str | None:
    """The line with a near miss in place of its value, or with another word of its vocabulary."""
    if name := spoken(line, vocabularies):
        left, space, word = line.rpartition(" ")
        return left + space + rng.choice([w for w in vocabularies[name] if w != word])
    left, equals, value = line.rpartition("=")
    if not equals:  # digits spelt out: one of them is misread
        numbers = line.split()
        at = rng.randrange(len(numbers))
        numbers[at] = str((int(numbers[at][:DIGITS]) + 1 + rng.randrange(8)) % 10)
        return " ".join(numbers)
    whole, point, decimals = value.partition(".")
    if not value.replace(".", "", 1).isdecimal() or len(value) > DIGITS:
        return None
    near = str(off_by(int(whole + decimals), rng)).rjust(len(decimals) + 1, "0")
    cut = len(near) - len(decimals)
    return f"{left}={near[:cut]}{point}{near[cut:]}"


def _read(line: str, before: str, right: T) -> T:
    """The value that a line gives after `before`, in the form of the right one."""
    if not line.startswith(before) or len(line) > len(before) + 64 * DIGITS:
        raise Stuck
    text: Any = line[len(before) :]
    if isinstance(right, list):
        kind = type(right[0]) if right else str
        return [kind(item) for item in text.split()]  # type: ignore[return-value]
    if isinstance(right, int) and len(text) > DIGITS:
        raise Stuck
    return type(right)(text)  # type: ignore[call-arg]


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
