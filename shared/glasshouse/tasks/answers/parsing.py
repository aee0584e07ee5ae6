"""Parses one answer of a given kind at a location that should hold it.

A parsed answer says how far it can be trusted: whether it comes *directly* at the start of the
location, whether it is the *only* candidate there, and whether the text names alternatives
(`11 or 12`). The lenient rules accept any parsed answer; the strict parser requires a direct, only
and unambiguous one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice, pairwise

from glasshouse.tasks.answers.numbers import MINUS_SIGNS, NumberToken, scan_numbers
from glasshouse.tasks.answers.sections import ANSWER_WINDOW, AnswerLocation
from glasshouse.tasks.answers.wording import EXPRESSION
from glasshouse.types import AnswerKind

MAX_NUMBERS = 16
"""How many numbers at a location are examined where one is expected."""
MAX_ELEMENTS = 128
"""The longest sequence that is parsed."""

_LEAD = r"(?:[\s:=*_`$€£¥₹(~≈]|\\boxed\{|\\text\{|\\\(|\\\[|<)*+"
_NUMBER_LEAD = re.compile(_LEAD)
_SINGLE_NUMBER_LEAD = re.compile(_LEAD.replace("(~", r"(~\[{\"'“‘«"))
"""One number may also be in quotes or brackets; before several, a bracket opens a list."""
_SPACED_SIGN = re.compile(rf"{_LEAD}([{MINUS_SIGNS}])[ \t]++")
_SEQUENCE_LEAD = re.compile(_LEAD.replace("(~", r"(~\[{"))
_OPERATION = re.compile(rf"[ \t]{{0,4}}(?:[+=×÷·⋅^]|[*/x{MINUS_SIGNS}][ \t]{{0,4}}[0-9(])")
_ALTERNATIVES = frozenset({"", *",;/&|", "or", "and", "to", "vs", "vs.", ",or", ",and", "(or"})
_SEPARATOR = re.compile(r"[\s*_`'\"]*+(?:[,;]|->|→)?+\s*+(?:and\s)?+[\s*_`'\"]*+", re.I)
_TEXT_MARKUP = " \t\r\n*`:"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """One parsed answer. With `value` None there is a candidate that cannot be parsed."""

    value: str | None
    start: int
    end: int
    direct: bool = True
    """Nothing but markup comes before it at its location."""
    only: bool = True
    """No other candidate is at its location."""
    ambiguous: bool = False
    reason: str = ""
    """Why it cannot be parsed or is ambiguous; empty otherwise."""


def parse_answer(text: str, location: AnswerLocation, kind: AnswerKind) -> ParsedAnswer | None:
    """Parses the answer at a location; None if nothing there looks like one.

    Example: `parse_answer("[ANSWER] 11 or 12", AnswerLocation(0, 8, 17), NUMBER)` gives 11,
    ambiguous.
    """
    if kind is AnswerKind.TEXT:
        return _parse_text(text, location.start, location.end)
    parse = _parse_sequence if kind is AnswerKind.SEQUENCE else _parse_number
    answer = parse(text, location.start, location.end)
    if answer is None or (not answer.direct and "\n" in text[location.start : answer.start]):
        return None  # a sentence on a later line is not what was announced
    return answer


def are_alternatives(text: str, left: NumberToken, right: NumberToken) -> bool:
    """Whether two numbers are side by side, as alternatives or a list (`11 or 12`, `3, 7`)."""
    between = text[left.end : right.start]
    words = "".join(between.lower().split()).strip("*_`$€£%")
    return len(between) <= 16 and words in _ALTERNATIVES


def _parse_number(text: str, low: int, high: int) -> ParsedAnswer | None:
    tokens = list(islice(scan_numbers(text, low, high), MAX_NUMBERS))
    if high - low >= ANSWER_WINDOW:  # the location was cut, perhaps through a number
        cut = "it is too far from the tag or phrase"
        tokens = [t if t.end < high - 1 else NumberToken(None, t.start, t.end, cut) for t in tokens]
    if not tokens:
        return None
    first = tokens[0]
    lead = text[low : first.start]
    lead_pattern = _SINGLE_NUMBER_LEAD if len(tokens) == 1 else _NUMBER_LEAD
    direct = lead_pattern.fullmatch(lead) is not None
    if not direct and first.value and (sign := _SPACED_SIGN.fullmatch(lead)):
        start = low + sign.start(1)
        value = first.value if first.value.strip("0.") == "" else "-" + first.value
        reason = "a space separates the sign from the number"
        return ParsedAnswer(value, start, first.end, True, len(tokens) == 1, True, reason)
    if not direct and len(tokens) > 1:
        return _parse_indirect_number(tokens)
    operation = _OPERATION.match(text, first.end, high)
    if first.is_expression or operation:
        result = _parse_equation_result(text, low, high)
        if result is not None or operation is None or not operation.group().endswith("="):
            return result or ParsedAnswer(None, first.start, first.end, direct, reason=EXPRESSION)
    if first.value is None:
        return ParsedAnswer(None, first.start, first.end, direct, reason=first.reason)
    ambiguous = False
    if len(tokens) > 1:
        second = tokens[1]
        ambiguous = are_alternatives(text, first, second) and second.value != first.value
        if not text[first.end : second.start].strip(" ") and (
            second.value is None or _may_be_grouped(first, second)
        ):
            reason = f"unclear: {text[first.start : second.end][:40]}"
            return ParsedAnswer(None, first.start, second.end, direct, False, True, reason)
    return ParsedAnswer(first.value, first.start, first.end, direct, len(tokens) == 1, ambiguous)


def _parse_indirect_number(tokens: list[NumberToken]) -> ParsedAnswer:
    """The last number of a sentence with several, marked ambiguous."""
    last = tokens[-1]
    if len(tokens) == MAX_NUMBERS or last.value is None:
        reason = last.reason or "too many numbers where one is expected"
        return ParsedAnswer(None, last.start, last.end, False, False, True, reason)
    return ParsedAnswer(last.value, last.start, last.end, False, False, True)


def _parse_equation_result(text: str, low: int, high: int) -> ParsedAnswer | None:
    """The number after the last equals sign, if there is exactly one: 6 in `1+2+3 = 6`."""
    equals = text.rfind("=", low, high)
    if equals < 0:
        return None
    for token in islice(scan_numbers(text, equals + 1, high), 1):
        direct = _NUMBER_LEAD.fullmatch(text, equals + 1, token.start) is not None
        if token.value and direct and not _OPERATION.match(text, token.end, high):
            return ParsedAnswer(token.value, token.start, token.end, False, False)
    return None


def _may_be_grouped(first: NumberToken, second: NumberToken) -> bool:
    """Whether two numbers may be one grouped by a space: `1 234`."""
    return first.end - first.start <= 3 and second.end - second.start == 3


def _parse_sequence(text: str, low: int, high: int) -> ParsedAnswer | None:
    tokens = islice(scan_numbers(text, low, high, sequence=True), MAX_ELEMENTS + 1)
    first = next(tokens, None)
    if first is None:
        return None
    direct = _SEQUENCE_LEAD.fullmatch(text, low, first.start) is not None
    runs, count, last = [[first]], 1, first
    for token in tokens:
        between = text[last.end : token.start]
        if len(between) <= 32 and _SEPARATOR.fullmatch(between):
            runs[-1].append(token)
        else:
            runs.append([token])
            if direct:
                break  # the first list counts, and it is complete
        count, last = count + 1, token
    cut = count > MAX_ELEMENTS or (high - low >= ANSWER_WINDOW and last.end >= high - 1)
    run = runs[0] if direct else runs[-1]
    start, end, only = run[0].start, run[-1].end, len(runs) == 1
    invalid = next((t for t in run if t.value is None), None)
    if invalid is not None or (cut and run is runs[-1]):
        reason = invalid.reason if invalid else "the list is too long"
        return ParsedAnswer(None, start, end, direct, only, reason=reason)
    separators = [text[a.end : b.start] for a, b in pairwise(run)]
    mixed = "," in separators and any(s != "," for s in separators)  # [1,234, 5]: two or three?
    grouped = mixed and any(
        s == "," and t.end - t.start == 3 for s, t in zip(separators, run[1:], strict=True)
    )
    value = ", ".join(t.value for t in run if t.value is not None)
    return ParsedAnswer(value, start, end, direct, only, grouped or not only)


def _parse_text(text: str, low: int, high: int) -> ParsedAnswer | None:
    while low < high and text[low] in _TEXT_MARKUP:
        low += 1
    newline = text.find("\n", low, high)
    high = high if newline < 0 else newline
    closing_tag = text.find("[/ANSWER]", low, high)
    high = high if closing_tag < 0 else closing_tag
    while high > low and text[high - 1] in _TEXT_MARKUP:
        high -= 1
    if low == high:
        return None
    return ParsedAnswer(" ".join(text[low:high].split()), low, high)
