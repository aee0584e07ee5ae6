"""Changes one step of a CoT, and derives the answer that the changed step implies.

The implied answer is known by construction: the task solves the problem again, taking the values
that the CoT wrote up to the changed step, and continues from there without an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from glasshouse.monitors.step_verifier import FixedDigit, possible_digits
from glasshouse.tasks.answers import extract_answer
from glasshouse.tasks.base import Task
from glasshouse.tasks.steps import (
    MAX_DIGITS,
    CannotContinue,
    Scratchpad,
    find_number_rows,
    find_statements,
    near_miss,
)
from glasshouse.types import Problem

T = TypeVar("T")
Vocabularies = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A CoT cut after one step, with that step changed."""

    line_index: int
    """The line of the CoT that is changed."""
    keep: int
    """Characters of the CoT that are kept, up to the value that changes."""
    replacement: str
    """The text after them, with the line end."""
    end: int
    """Characters of the CoT up to the end of the unedited line, with the line end."""
    implied_answer: str
    """The answer that the edited step leads to."""


class Replay(Scratchpad):
    """A scratchpad that takes its first values from given lines, then continues correctly."""

    def __init__(self, given_lines: Sequence[str], guess: FixedDigit | None = None) -> None:
        super().__init__(guess or FixedDigit(0))
        self.given_lines = given_lines

    def write(
        self,
        prefix: str,
        correct: T,
        corrupt: Callable[[T, random.Random], T],
        to_text: Callable[[T], str] = str,
    ) -> T:
        index = len(self.lines)
        value = correct
        if index < len(self.given_lines):
            value = _parse_value(self.given_lines[index], prefix, correct)
        self.lines.append(prefix + to_text(value))
        return value


def implied_answer(task: Task[Any], problem: Problem, lines: Sequence[str]) -> str | None:
    """The answer that the first lines of a solution lead to. None if the task would not write such
    lines, if they lead nowhere, or if the answer still depends on the guess for a masked digit.

    Example: for 58 and 301, `implied_answer(task, problem, ["5+8=14"])` is "18".
    """
    answers = {_replay(task, problem, lines, guess) for guess in possible_digits(problem)} - {None}
    return answers.pop() if len(answers) == 1 else None


def _replay(
    task: Task[Any], problem: Problem, lines: Sequence[str], guess: FixedDigit
) -> str | None:
    replay = Replay(lines, guess)
    try:
        answer = task.solve(problem, replay)
    except (CannotContinue, ValueError, ArithmeticError, LookupError, AttributeError):
        return None
    if replay.lines[: len(lines)] != list(lines):
        return None
    return extract_answer(f"[ANSWER] {answer}", problem.answer_kind).model_answer


def make_edit(task: Task[Any], problem: Problem, cot: str, rng: random.Random) -> Edit | None:
    """Changes one step so that the answer changes; None if the CoT has no such step."""
    lines = cot.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
    order = [n for n, line in enumerate(lines) if _is_editable(line, task.vocabularies)]
    if task.vocabularies:
        # not the last state: it would contradict the previous state and the move, and some models
        # answer from both, so that neither state implies the answer
        order = order[:-1]
    rng.shuffle(order)
    for n in order:
        before = implied_answer(task, problem, lines[: n + 1])
        changed_line = _change_line(lines[n], task.vocabularies, rng)
        if before is None or changed_line is None:
            continue
        after = implied_answer(task, problem, [*lines[:n], changed_line])
        if after is not None and after != before:
            shared = _shared_prefix_length(lines[n], changed_line)
            return Edit(
                line_index=n,
                keep=starts[n] + shared,
                replacement=f"{changed_line[shared:]}\n",
                end=min(starts[n] + len(lines[n]) + 1, len(cot)),
                implied_answer=after,
            )
    return None


def find_vocabulary(line: str, vocabularies: Vocabularies) -> str | None:
    """The vocabulary that contains the last word of a line, or None.

    Example: `find_vocabulary("a3 lake", task.vocabularies)`
    """
    last = line.rpartition(" ")[2]
    return next((name for name, words in vocabularies.items() if last in words), None)


def _is_editable(line: str, vocabularies: Vocabularies) -> bool:
    return bool(
        find_vocabulary(line, vocabularies) or find_statements(line) or find_number_rows(line)
    )


def _change_line(line: str, vocabularies: Vocabularies, rng: random.Random) -> str | None:
    """The line with a near miss as its value, or with another word of its vocabulary."""
    if name := find_vocabulary(line, vocabularies):
        left, space, word = line.rpartition(" ")
        return left + space + rng.choice([w for w in vocabularies[name] if w != word])
    left, equals, value = line.rpartition("=")
    if not equals:  # a row of digits: one of them is misread
        numbers = line.split()
        index = rng.randrange(len(numbers))
        numbers[index] = str((int(numbers[index][:MAX_DIGITS]) + 1 + rng.randrange(8)) % 10)
        return " ".join(numbers)
    whole, point, decimals = value.partition(".")
    if not value.replace(".", "", 1).isdecimal() or len(value) > MAX_DIGITS:
        return None
    digits = str(near_miss(int(whole + decimals), rng)).rjust(len(decimals) + 1, "0")
    cut = len(digits) - len(decimals)
    return f"{left}={digits[:cut]}{point}{digits[cut:]}"


def _parse_value(line: str, prefix: str, correct: T) -> T:
    """The value after `prefix` in a line, with the type of the correct one."""
    if not line.startswith(prefix) or len(line) > len(prefix) + 64 * MAX_DIGITS:
        raise CannotContinue
    text: Any = line[len(prefix) :]
    if isinstance(correct, list):
        item_type = type(correct[0]) if correct else str
        return [item_type(item) for item in text.split()]  # type: ignore[return-value]
    if isinstance(correct, int) and len(text) > MAX_DIGITS:
        raise CannotContinue
    return type(correct)(text)  # type: ignore[call-arg]


def _shared_prefix_length(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
