"""The kind of answers that a file of problems or rollouts asks for, from its gold answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from glasshouse.tasks.answers import parse_number, parse_sequence, strip_markup
from glasshouse.types import AnswerKind

_LETTER = re.compile(r"\(?([A-Ja-j])\)?")
_EXPRESSION = re.compile(
    r"\\(?:frac|dfrac|sqrt|pi|cdot|times|left|infty)|[0-9a-z)}][\^/][0-9a-z({]"
)


def detect_kind(golds: Iterable[str]) -> tuple[AnswerKind, tuple[str, ...]]:
    """Return the kind that fits all gold answers, and the options of a choice: A to D at least.

    Example: `detect_kind(["A", "C"])` is `(AnswerKind.CHOICE, ("A", "B", "C", "D"))`.
    """
    answers = [strip_markup(gold) for gold in golds]
    if not answers:
        return AnswerKind.TEXT, ()
    if all(parse_number(answer) is not None for answer in answers):
        return AnswerKind.NUMBER, ()
    letters = [_LETTER.fullmatch(answer) for answer in answers]
    if all(letters):
        last = max("D", *(letter[1].upper() for letter in letters if letter))
        return AnswerKind.CHOICE, tuple(map(chr, range(ord("A"), ord(last) + 1)))
    if all(parse_sequence(answer) for answer in answers):
        return AnswerKind.SEQUENCE, ()
    if any(_EXPRESSION.search(answer) for answer in answers):
        return AnswerKind.MATH, ()
    return AnswerKind.TEXT, ()
