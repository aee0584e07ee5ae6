r"""The only answer parser: training and evaluation read completions here and nowhere else.

The lenient reading is the chain by which the second seed evaluates; the first rule that finds
something wins, and which one it was is recorded:

    [ANSWER] 28  ──►  \boxed{28}  ──►  the answer is 28, or = 28  ──►  the last number

The strict reading is `[ANSWER] 28` and nothing else: one tag outside the think blocks, the answer
directly after it, alone on the text's last line. What it refuses has the value None, so whatever
hedges, quotes or lists earns nothing.

    read leniently            value   why
    [ANSWER] 27 [ANSWER] 28   28      the last tag, ambiguous
    [ANSWER] 11 or 12         11      the first number after the tag, ambiguous
    [ANSWER] 1e5              None    an unreadable tag is not passed over for another number
    The answer is 28 (7 * 4 = 28)     "answer is" comes before "="
    so 6 * 7 = 42             42      the last "=" that is followed by one number
    1+2+3                     None    the last number-like thing is an expression
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from glasshouse.answers import sections
from glasshouse.answers.equality import equal
from glasshouse.answers.numbers import EXPRESSION, scan_back
from glasshouse.answers.parsing import Reading, hedged, read
from glasshouse.answers.sections import Outline, Place
from glasshouse.types import AnswerKind, Extracted, Rule

__all__ = ["Sections", "equal", "extract", "split"]

_WORD = re.compile(r"\w+")
_QUOTES = tuple("\"'`“‘«")
_DOUBTS = frozenset({"or", "nor", "not", "and", "to", "either", "maybe", "perhaps", "vs", "no"})
_UNIT_WORDS = 2
"""Strictly, at most this many words may follow the answer on its line: `28 square meters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """A completion divided once, for everyone. `cot + answer` is the text, character by character.

    Example: `split("2+2 is 4\n[ANSWER] 4")` gives the CoT `"2+2 is 4\n"` and the answer
    `"[ANSWER] 4"`.
    """

    cot: str
    """The reasoning, think markers included."""
    answer: str
    """The final answer as stated, with its tag or phrase; empty if there is none."""
    start: int
    """Where the answer begins: `text[start:] == answer`."""


@dataclass(frozen=True, slots=True)
class _Found:
    rule: Rule
    anchor: int
    reading: Reading


def split(text: str) -> Sections:
    """Divide reasoning from final answer; the only place where that is decided.

    With a think block, what follows the last one is the answer, and a block left open leaves none.
    Without one, the answer begins where it is announced: at the last tag, else the last box, else
    the last phrase, else the last number. A text that offers none of these is all reasoning.
    """
    marks = sections.outline(text)
    start = marks.body
    if not marks.thought:
        found = None if marks.tags else _chain(text, marks, AnswerKind.NUMBER)
        start = marks.tags[-1] if marks.tags else found.anchor if found else len(text)
    return Sections(cot=text[:start], answer=text[start:], start=start)


def extract(text: str, kind: AnswerKind = AnswerKind.NUMBER, *, strict: bool = False) -> Extracted:
    """Read the answer of a completion. Never raises, whatever the text.

    Example: `extract("so 1,234.").value` gives `"1234"`, by the rule LAST; with `strict=True` it
    gives None, since there is no tag.
    """
    marks = sections.outline(text)
    if strict:
        return _strict(text, marks, kind)
    found = _chain(text, marks, kind)
    if found is None:
        why = (
            "the think block is never closed, so there is no answer"
            if marks.thought and marks.body == len(text)
            else "nothing reads as an answer"
        )
        return _nothing(Rule.NONE, False, why)
    reading = found.reading
    if reading.value is None:
        shown = text[reading.start : reading.end][:40]
        why = f"{_HOW[found.rule]} gives {shown!r}, which cannot be read: {reading.why}"
        return _nothing(found.rule, reading.ambiguous, why)
    return Extracted(
        value=reading.value,
        rule=found.rule,
        span=(reading.start, reading.end),
        ambiguous=reading.ambiguous,
        reason=f"{_HOW[found.rule]} gives {reading.value[:60]}"
        + (", but the text offers more than one answer" if reading.ambiguous else ""),
    )


_HOW = {
    Rule.TAG: "the last [ANSWER] tag",
    Rule.BOXED: "the last \\boxed{}",
    Rule.PHRASE: 'the last "answer is" or "="',
    Rule.LAST: "the last number in the text",
}


def _chain(text: str, marks: Outline, kind: AnswerKind) -> _Found | None:
    """The rules in their order, on what follows the think blocks."""
    body = marks.body
    tags = tuple(tag for tag in marks.tags if tag >= body)
    if found := _agreeing(text, sections.tagged(text, tags), kind, Rule.TAG):
        return found
    if found := _agreeing(text, sections.boxes(text, body), kind, Rule.BOXED):
        return found
    if found := _agreeing(text, sections.phrases(text, body), kind, Rule.PHRASE, direct=True):
        return found
    if kind is AnswerKind.TEXT:
        return None
    for place in sections.equals(text, body):
        reading = read(text, Place(place.anchor, place.low, min(place.high, place.low + 128)), kind)
        if reading and reading.direct and reading.why != EXPRESSION:
            return _Found(Rule.PHRASE, place.anchor, reading)
    if kind is AnswerKind.SEQUENCE:
        listed = read(text, sections.last_line(text, body), kind)
        return _Found(Rule.LAST, listed.start, listed) if listed else None
    return _last_number(text, body)


def _agreeing(
    text: str, places: Iterable[Place], kind: AnswerKind, rule: Rule, *, direct: bool = False
) -> _Found | None:
    """The last of several announcements; ambiguous if an earlier one says something else."""
    found: _Found | None = None
    for count, place in enumerate(places, 1):
        reading = read(text, place, kind)
        if reading is None or (direct and not reading.direct):
            continue
        if found is None:
            found = _Found(rule, place.anchor, reading)
        elif reading.value != found.reading.value or count == sections.PLACES:
            return _Found(rule, found.anchor, _doubtful(found.reading))
    return found


def _doubtful(r: Reading) -> Reading:
    return Reading(r.value, r.start, r.end, r.direct, r.alone, True, r.why)


def _last_number(text: str, body: int) -> _Found | None:
    place = sections.tail(text, body)
    tokens = scan_back(text, place.low, place.high)
    last = next(tokens, None)
    cut = place.low + 4 if place.low > body else 0  # a number cut by the window is none
    if last is None or last.start < cut:
        return None
    before = next(tokens, None)
    ambiguous = before is not None and last.value != before.value and hedged(text, before, last)
    reading = Reading(last.value, last.start, last.end, ambiguous=ambiguous, why=last.why)
    return _Found(Rule.LAST, last.start, reading)


def _strict(text: str, marks: Outline, kind: AnswerKind) -> Extracted:
    """One tag, its answer directly after it and alone, nothing after that; else why not."""
    if not marks.tags:
        return _nothing(Rule.NONE, False, "there is no [ANSWER] tag outside a think block")
    places = sections.tagged(text, marks.tags)
    readings = [read(text, place, kind) for place in places]
    if len(marks.tags) > 1:
        differ = len({r.value for r in readings if r}) > 1 or len(marks.tags) > len(places)
        why = f"there are {len(marks.tags)} [ANSWER] tags where one is asked for"
        return _nothing(Rule.TAG, differ, why + (", and they differ" if differ else ""))
    reading, tag = readings[0], marks.tags[0]
    if tag < marks.body:
        return _nothing(Rule.TAG, False, "the [ANSWER] tag is followed by more thinking")
    if reading is None:
        return _nothing(Rule.TAG, False, "the [ANSWER] tag is followed by nothing that can be read")
    if reading.value is None:
        shown = text[reading.start : reading.end][:40]
        return _nothing(Rule.TAG, reading.ambiguous, f"{shown!r} cannot be read: {reading.why}")
    if why := _objection(text, tag, reading, kind):
        return _nothing(Rule.TAG, reading.ambiguous or not reading.alone, why)
    return Extracted(
        value=reading.value,
        rule=Rule.TAG,
        span=(reading.start, reading.end),
        ambiguous=False,
        reason=f"the one [ANSWER] tag gives {reading.value[:60]}",
    )


def _objection(text: str, tag: int, reading: Reading, kind: AnswerKind) -> str:
    """Why a tag with a readable answer is still not one unambiguous answer; empty if it is."""
    if text[:tag].rstrip(" *").endswith(_QUOTES):
        return "the [ANSWER] tag is quoted, not given"
    if not reading.direct:
        return "the answer does not directly follow the [ANSWER] tag"
    if reading.ambiguous or not reading.alone:
        return reading.why or "more than one answer follows the [ANSWER] tag"
    line_end = text.find("\n", reading.end)
    line_end = len(text) if line_end < 0 else line_end
    if _WORD.search(text, line_end):
        return "the text goes on after the line with the [ANSWER] tag"
    if kind is AnswerKind.TEXT:
        return ""
    rest = text[reading.end : line_end].replace("[/ANSWER]", "")
    words = _WORD.findall(rest[: sections.REACH])
    if len(words) > _UNIT_WORDS or len(rest) > sections.REACH or "?" in rest:
        return "the answer is followed by more than a unit"
    if any(word.lower() in _DOUBTS for word in words):
        return "the answer is followed by a doubt"
    return ""


def _nothing(rule: Rule, ambiguous: bool, reason: str) -> Extracted:
    return Extracted(value=None, rule=rule, span=None, ambiguous=ambiguous, reason=reason)
