"""The kind of answers that a file of problems or rollouts asks for, from its gold answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from glasshouse.tasks.answers import parse_number, parse_sequence, read_exactly, strip_markup
from glasshouse.types import AnswerKind

_LETTER = re.compile(r"\(?([A-Ja-j])\)?")
_EXPRESSION = re.compile(
    r"\\(?:frac|dfrac|sqrt|pi|cdot|times|left|infty)|[0-9a-z)}][\^/][0-9a-z({]"
)

AnswerForm = tuple[AnswerKind, tuple[str, ...]]
"""A kind, and the options of a choice."""


def find_forms(golds: Iterable[str], kind: str = "") -> dict[str, AnswerForm]:
    """Return the kind of each gold answer of a file, or the given one, and the options of a choice.

    A file may hold several kinds, but all its letters are options of one choice, and a number beside
    expressions is one too. Raise a ValueError for an answer that is not of the given kind.

    Example: `find_forms(["7", "C"])` is `{"7": (NUMBER, ()), "C": (CHOICE, ("A", "B", "C", "D"))}`.
    """
    answers = list(dict.fromkeys(golds))
    if kind:
        form = AnswerKind(kind), detect_kind(answers)[1] or tuple(map(strip_markup, answers))
        for answer in answers:
            is_read = kind in ("text", "math") or read_exactly(strip_markup(answer), *form)
            if not is_read:
                raise ValueError(f"the answer {answer!r:.60} is not a {kind}")
        return dict.fromkeys(answers, form)
    forms = {answer: detect_kind([answer]) for answer in answers}
    letters = [answer for answer, (found, _) in forms.items() if found is AnswerKind.CHOICE]
    shared: dict[AnswerKind, AnswerForm] = {AnswerKind.CHOICE: detect_kind(letters)}
    if any(found is AnswerKind.MATH for found, _ in forms.values()):
        shared |= dict.fromkeys((AnswerKind.NUMBER, AnswerKind.SEQUENCE), (AnswerKind.MATH, ()))
    return {answer: shared.get(form[0], form) for answer, form in forms.items()}


def detect_kind(golds: Iterable[str]) -> AnswerForm:
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
