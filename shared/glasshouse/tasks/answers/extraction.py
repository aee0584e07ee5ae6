r"""The only answer parser: training and evaluation extract answers here and nowhere else.

The lenient parser tries four rules in order; the first that finds a candidate wins and is recorded:

    [ANSWER] 28  ──►  \boxed{28}  ──►  the answer is 28, or = 28  ──►  the last number

The strict parser accepts `[ANSWER] 28` and nothing else: one tag outside think blocks, the answer
directly after it and alone on the last line of the text, but for markup, brackets that match and one
unit of a closed list. Anything it rejects has the value None, so that hedging, quoting or listing
numbers earns nothing. docs/tasks.md decides every class of text for both parsers.

    lenient                   value   why
    [ANSWER] 27 [ANSWER] 28   28      the last tag, ambiguous
    [ANSWER] 11 or 12         11      the first number after the tag, ambiguous
    [ANSWER] 3/4              None    a tag that cannot be parsed does not fall back to another rule
    The answer is not 28      None    a negated, bounded, struck-out or scaled number has no value
    The answer is 28 (7 * 4 = 28)     "answer is" comes before "="
    so 6 * 7 = 42             42      the last "=" that is followed by one number
    1+2+3                     None    the last number-like token is an expression
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from glasshouse.tasks.answers import sections
from glasshouse.tasks.answers.numbers import scan_numbers_reversed
from glasshouse.tasks.answers.parsing import ParsedAnswer, are_alternatives, parse_answer
from glasshouse.tasks.answers.sections import AnswerLocation, Markers
from glasshouse.tasks.answers.wording import (
    CONTEXT_CHARS,
    EXPRESSION,
    NEGATED,
    has_negation,
    is_plain_trail,
    parse_plain_lead,
)
from glasshouse.types import AnswerKind, Extracted, ExtractionRule

_QUOTES = tuple("\"'`“‘«")
_CLOSING_MARKS = " \t\r\n*_`$\\)]}-"
"""What may follow the answer line under the strict parser."""
_EQUALS_WINDOW = 128
"""How many characters after an equals sign may hold its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """A completion divided into chain of thought and answer; `cot + answer` is the whole text.

    Example: `split_completion("2+2 is 4\n[ANSWER] 4")` gives the CoT `"2+2 is 4\n"` and the answer
    `"[ANSWER] 4"`.
    """

    cot: str
    """The reasoning, think markers included."""
    answer: str
    """The final answer as stated, with its tag or phrase; empty if there is none."""
    answer_start: int
    """`text[answer_start:] == answer`."""


@dataclass(frozen=True, slots=True)
class _Match:
    rule: ExtractionRule
    anchor: int
    answer: ParsedAnswer


def split_completion(text: str) -> Sections:
    """Divides a completion into chain of thought and final answer.

    With a think block, the answer is what follows the last one; a block left open leaves no answer.
    Without one, the answer begins where it is announced: at the last tag, else the last box, else
    the last phrase, else the last number. A text with none of these is all reasoning.
    """
    markers = sections.find_markers(text)
    start = markers.body_start
    if not markers.has_think_block:
        tags = markers.tag_positions
        match = None if tags else _match_lenient(text, markers, AnswerKind.NUMBER)
        start = tags[-1] if tags else match.anchor if match else len(text)
    return Sections(cot=text[:start], answer=text[start:], answer_start=start)


def extract_answer(
    text: str, kind: AnswerKind = AnswerKind.NUMBER, *, strict: bool = False
) -> Extracted:
    """Extracts the answer of a completion. Never raises, whatever the text.

    Example: `extract_answer("so 1,234.").model_answer` gives `"1234"`, by the rule LAST; with
    `strict=True` it gives None, since there is no tag.
    """
    markers = sections.find_markers(text)
    if strict:
        return _extract_strict(text, markers, kind)
    match = _match_lenient(text, markers, kind)
    if match is None:
        reason = (
            "the think block is never closed, so there is no answer"
            if markers.has_think_block and markers.body_start == len(text)
            else "nothing in the text looks like an answer"
        )
        return _no_answer(ExtractionRule.NONE, False, reason)
    answer = match.answer
    source = _RULE_SOURCES[match.rule]
    if answer.value is None:
        excerpt = text[answer.start : answer.end][:40]
        reason = f"{source} gives {excerpt!r}, which cannot be parsed: {answer.reason}"
        return _no_answer(match.rule, answer.ambiguous, reason)
    return Extracted(
        model_answer=answer.value,
        rule=match.rule,
        span=(answer.start, answer.end),
        ambiguous=answer.ambiguous,
        reason=f"{source} gives {answer.value[:60]}"
        + (", but the text offers more than one answer" if answer.ambiguous else ""),
    )


_RULE_SOURCES = {
    ExtractionRule.TAG: "the last [ANSWER] tag",
    ExtractionRule.BOXED: "the last \\boxed{}",
    ExtractionRule.PHRASE: 'the last "answer is" or "="',
    ExtractionRule.LAST: "the last number in the text",
}


def _match_lenient(text: str, markers: Markers, kind: AnswerKind) -> _Match | None:
    """Applies the rules in order to the text after the think blocks."""
    body = markers.body_start
    tags = tuple(tag for tag in markers.tag_positions if tag >= body)
    if match := _match_last(text, sections.locate_after_tags(text, tags), kind, ExtractionRule.TAG):
        return match
    if match := _match_last(text, sections.locate_in_boxes(text, body), kind, ExtractionRule.BOXED):
        return match
    phrases = sections.locate_after_phrases(text, body)
    if match := _match_last(text, phrases, kind, ExtractionRule.PHRASE, direct_only=True):
        return match
    if kind is AnswerKind.TEXT:
        return None
    for location in sections.locate_after_equals(text, body):
        end = min(location.end, location.start + _EQUALS_WINDOW)
        answer = parse_answer(text, replace(location, end=end), kind)
        if answer and answer.direct and answer.reason != EXPRESSION:
            return _Match(ExtractionRule.PHRASE, location.anchor, answer)
    if kind is AnswerKind.SEQUENCE:
        answer = parse_answer(text, sections.locate_last_line(text, body), kind)
        return _Match(ExtractionRule.LAST, answer.start, answer) if answer else None
    return _match_last_number(text, body)


def _match_last(
    text: str,
    locations: Iterable[AnswerLocation],
    kind: AnswerKind,
    rule: ExtractionRule,
    *,
    direct_only: bool = False,
) -> _Match | None:
    """The last of several announced answers; ambiguous if an earlier one differs."""
    last: _Match | None = None
    for count, location in enumerate(locations, 1):
        answer = parse_answer(text, location, kind)
        if answer is None or (direct_only and not answer.direct):
            continue
        if rule is ExtractionRule.PHRASE and _is_negated(text, location.anchor):
            answer = replace(answer, value=None, reason=NEGATED)
        if last is None:
            last = _Match(rule, location.anchor, answer)
        elif answer.value != last.answer.value or count == sections.MAX_LOCATIONS:
            return _Match(rule, last.anchor, replace(last.answer, ambiguous=True))
    return last


def _match_last_number(text: str, body_start: int) -> _Match | None:
    window = sections.locate_tail(text, body_start)
    tokens = scan_numbers_reversed(text, window.start, window.end)
    last = next(tokens, None)
    # a number cut by the window does not count
    first_whole = window.start + 4 if window.start > body_start else 0
    if last is None or last.start < first_whole:
        return None
    previous = next(tokens, None)
    ambiguous = (
        previous is not None
        and last.value != previous.value
        and are_alternatives(text, previous, last)
    )
    answer = ParsedAnswer(last.value, last.start, last.end, ambiguous=ambiguous, reason=last.reason)
    return _Match(ExtractionRule.LAST, last.start, answer)


def _extract_strict(text: str, markers: Markers, kind: AnswerKind) -> Extracted:
    """Requires one tag, its answer directly after it and alone, and nothing after that."""
    tags = markers.tag_positions
    if not tags:
        return _no_answer(
            ExtractionRule.NONE, False, "there is no [ANSWER] tag outside a think block"
        )
    locations = sections.locate_after_tags(text, tags)
    answers = [parse_answer(text, location, kind) for location in locations]
    if len(tags) > 1:
        differ = len({a.value for a in answers if a}) > 1 or len(tags) > len(locations)
        reason = f"there are {len(tags)} [ANSWER] tags where one is expected"
        return _no_answer(
            ExtractionRule.TAG, differ, reason + (", and they differ" if differ else "")
        )
    answer, tag = answers[0], tags[0]
    if tag < markers.body_start:
        return _no_answer(
            ExtractionRule.TAG, False, "the [ANSWER] tag is followed by more thinking"
        )
    if answer is None:
        return _no_answer(ExtractionRule.TAG, False, "nothing after the [ANSWER] tag can be parsed")
    if answer.value is None:
        excerpt = text[answer.start : answer.end][:40]
        reason = f"{excerpt!r} cannot be parsed: {answer.reason}"
        return _no_answer(ExtractionRule.TAG, answer.ambiguous, reason)
    if reason := _strict_objection(text, tag, answer, kind):
        return _no_answer(ExtractionRule.TAG, answer.ambiguous or not answer.only, reason)
    return Extracted(
        model_answer=answer.value,
        rule=ExtractionRule.TAG,
        span=(answer.start, answer.end),
        ambiguous=False,
        reason=f"the one [ANSWER] tag gives {answer.value[:60]}",
    )


def _strict_objection(text: str, tag: int, answer: ParsedAnswer, kind: AnswerKind) -> str:
    """Why a tag with a parsed answer is not one unambiguous answer; empty if it is."""
    if text[:tag].rstrip(" *").endswith(_QUOTES):
        return "the [ANSWER] tag is quoted"
    if _is_negated(text, tag):
        return "the [ANSWER] tag is negated"
    if not answer.direct:
        return "the answer does not directly follow the [ANSWER] tag"
    if answer.ambiguous or not answer.only:
        return answer.reason or "more than one answer follows the [ANSWER] tag"
    line_end = text.find("\n", answer.end)
    line_end = len(text) if line_end < 0 else line_end
    if text[line_end:].strip(_CLOSING_MARKS):
        return "the text continues after the line with the [ANSWER] tag"
    if kind is AnswerKind.TEXT:
        return ""
    closers = parse_plain_lead(text[tag + len("[ANSWER]") : answer.start])
    if closers is None:
        return "more than markup comes before the answer"
    trail = text[answer.end : line_end]
    units = kind is AnswerKind.NUMBER
    if len(trail) > sections.ANSWER_WINDOW or not is_plain_trail(trail, closers, units=units):
        return "the answer is followed by more than a unit"
    return ""


def _is_negated(text: str, anchor: int) -> bool:
    """Whether the clause before a tag or phrase negates it: `I do not think the answer is 28`."""
    return has_negation(text[max(0, anchor - CONTEXT_CHARS) : anchor])


def _no_answer(rule: ExtractionRule, ambiguous: bool, reason: str) -> Extracted:
    return Extracted(model_answer=None, rule=rule, span=None, ambiguous=ambiguous, reason=reason)
