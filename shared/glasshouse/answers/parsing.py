"""Reading one answer of each kind out of a stretch of text that should hold it.

A reading says how far it can be trusted: whether the answer stands *directly* at the start of the
stretch, whether it stands there *alone*, and whether the text hedges (`11 or 12`). The lenient
chain takes any reading; the strict one wants a direct one that stands alone and hedges nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, pairwise

from glasshouse.answers.numbers import EXPRESSION, MINUS, Token, scan
from glasshouse.answers.sections import REACH, Place
from glasshouse.types import AnswerKind

MANY = 16
"""How many numbers of a stretch are looked at where one is wanted."""
ELEMENTS = 128
"""The longest sequence that is read."""

_LEAD = r"(?:[\s:=*_`$€£¥₹(~≈]|\\boxed\{|\\text\{|\\\(|\\\[|<)*+"
_DIRECT = re.compile(_LEAD)
_SPACED_SIGN = re.compile(rf"{_LEAD}([{MINUS}])[ \t]++")
_LISTED = re.compile(_LEAD.replace("(~", r"(~\[{"))
_OPERATION = re.compile(rf"[ \t]{{0,4}}(?:[+=×÷·⋅^]|[*/x{MINUS}][ \t]{{0,4}}[0-9(])")
_ALTERNATIVES = frozenset({"", *",;/&|", "or", "and", "to", "vs", "vs.", ",or", ",and", "(or"})
_BETWEEN = re.compile(r"[\s*_`'\"]*+(?:[,;]|->|→)?+\s*+(?:and\s)?+[\s*_`'\"]*+", re.I)
_DRESSING = " \t\r\n*`:"


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer read. A `value` of None means: something is there, and it cannot be read."""

    value: str | None
    start: int
    end: int
    direct: bool = True
    alone: bool = True
    ambiguous: bool = False
    why: str = ""


def read(text: str, place: Place, kind: AnswerKind) -> Reading | None:
    """The answer at a place, or None if nothing there looks like one.

    Example: `read("[ANSWER] 11 or 12", Place(0, 8, 17), NUMBER)` reads 11, ambiguous.
    """
    if kind is AnswerKind.TEXT:
        return _text(text, place.low, place.high)
    find = _sequence if kind is AnswerKind.SEQUENCE else _number
    reading = find(text, place.low, place.high)
    if reading is None or (not reading.direct and "\n" in text[place.low : reading.start]):
        return None  # a sentence on a later line is not what was announced
    return reading


def hedged(text: str, left: Token, right: Token) -> bool:
    """Do two numbers stand side by side, as alternatives or a list (`11 or 12`, `3, 7`)?"""
    gap = text[left.end : right.start]
    return len(gap) <= 16 and "".join(gap.lower().split()).strip("*_`$€£%") in _ALTERNATIVES


def _number(text: str, low: int, high: int) -> Reading | None:
    tokens = list(islice(scan(text, low, high), MANY))
    if high - low >= REACH:  # the stretch was cut, perhaps through a number
        cut = "it goes on too far"
        tokens = [t if t.end < high - 1 else Token(None, t.start, t.end, cut) for t in tokens]
    if not tokens:
        return None
    first = tokens[0]
    lead = text[low : first.start]
    direct = _DIRECT.fullmatch(lead) is not None
    if not direct and first.value and (sign := _SPACED_SIGN.fullmatch(lead)):
        start = low + sign.start(1)
        value = first.value if first.value.strip("0.") == "" else "-" + first.value
        return Reading(
            value, start, first.end, True, len(tokens) == 1, True, "its sign stands apart"
        )
    if not direct and len(tokens) > 1:
        return _indirect(text, tokens)
    operation = _OPERATION.match(text, first.end, high)
    if first.expression or operation:
        worked = _worked(text, low, high)
        if worked is not None or operation is None or not operation.group().endswith("="):
            return worked or Reading(None, first.start, first.end, direct, why=EXPRESSION)
    if first.value is None:
        return Reading(None, first.start, first.end, direct, why=first.why)
    ambiguous = False
    if len(tokens) > 1:
        second = tokens[1]
        ambiguous = hedged(text, first, second) and second.value != first.value
        if not text[first.end : second.start].strip(" ") and (
            second.value is None or _grouped_by_space(first, second)
        ):
            shown = text[first.start : second.end][:40]
            return Reading(None, first.start, second.end, direct, False, True, f"unclear: {shown}")
    return Reading(first.value, first.start, first.end, direct, len(tokens) == 1, ambiguous)


def _indirect(text: str, tokens: list[Token]) -> Reading:
    """A sentence with several numbers: its last one, and it is ambiguous."""
    last = tokens[-1]
    if len(tokens) == MANY or last.value is None:
        why = last.why or "too many numbers where one is wanted"
        return Reading(None, last.start, last.end, False, False, True, why)
    return Reading(last.value, last.start, last.end, False, False, True)


def _worked(text: str, low: int, high: int) -> Reading | None:
    """`1+2+3 = 6`: what the last equals sign says, if it says one number."""
    at = text.rfind("=", low, high)
    if at < 0:
        return None
    for token in islice(scan(text, at + 1, high), 1):
        plain = _DIRECT.fullmatch(text, at + 1, token.start) is not None
        if token.value and plain and not _OPERATION.match(text, token.end, high):
            return Reading(token.value, token.start, token.end, False, False)
    return None


def _grouped_by_space(first: Token, second: Token) -> bool:
    """`1 234` may be one number or two."""
    return first.end - first.start <= 3 and second.end - second.start == 3


def _sequence(text: str, low: int, high: int) -> Reading | None:
    tokens = list(islice(scan(text, low, high, sequence=True), ELEMENTS + 1))
    if not tokens:
        return None
    cut = len(tokens) > ELEMENTS or (high - low >= REACH and tokens[-1].end >= high - 1)
    runs = [[tokens[0]]]
    for before, token in pairwise(tokens):
        gap = text[before.end : token.start]
        if len(gap) <= 32 and _BETWEEN.fullmatch(gap):
            runs[-1].append(token)
        else:
            runs.append([token])
    direct = _LISTED.fullmatch(text, low, tokens[0].start) is not None
    run = runs[0] if direct else runs[-1]
    start, end, alone = run[0].start, run[-1].end, len(runs) == 1
    bad = next((t for t in run if t.value is None), None)
    if bad is not None or (cut and run is runs[-1]):
        why = bad.why if bad else "the list is too long"
        return Reading(None, start, end, direct, alone, why=why)
    gaps = [text[a.end : b.start] for a, b in pairwise(run)]
    mixed = "," in gaps and any(gap != "," for gap in gaps)  # [1,234, 5]: two elements or three?
    grouped = mixed and any(
        g == "," and t.end - t.start == 3 for g, t in zip(gaps, run[1:], strict=True)
    )
    value = ", ".join(t.value for t in run if t.value is not None)
    return Reading(value, start, end, direct, alone, grouped or not alone)


def _text(text: str, low: int, high: int) -> Reading | None:
    while low < high and text[low] in _DRESSING:
        low += 1
    stop = text.find("\n", low, high)
    high = high if stop < 0 else stop
    close = text.find("[/ANSWER]", low, high)
    high = high if close < 0 else close
    while high > low and text[high - 1] in _DRESSING:
        high -= 1
    if low == high:
        return None
    return Reading(" ".join(text[low:high].split()), low, high)
