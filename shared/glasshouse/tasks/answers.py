r"""The only answer parser: it reads the form of an answer, never the language around it.

Strict reads one line, the last that holds more than markup. It must be exactly the tag or the box with
a value of the problem's kind. Earlier lines only tell whether a thinking block, a code fence or a
quotation is still open. Lenient takes the first rule that applies:

    kind       strict                            lenient
    number     [ANSWER] 28     \boxed{28}        tag, box, "answer is", "=", last number
    sequence   [ANSWER] 3, 7   \boxed{3, 7}      tag, box, "answer is", "=", last list of numbers
    choice     [ANSWER] (B)    \boxed{B}         tag, box, <answer>, "answer is", last stand-alone option
    text       [ANSWER] Rome   \boxed{Rome}      tag, box, <answer>, "answer is", last line
    math       [ANSWER] 3/4    \boxed{3/4}       tag, box, "answer is", "=", last number

Markup that changes no value is ignored at both ends of a line and of a value: bold, code ticks, `$`,
LaTeX's formula delimiters, a final full stop. Numbers may be grouped in thousands.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import floor
from typing import Any, NamedTuple

from glasshouse.types import AnswerKind, Extracted, ExtractionRule, Problem

MAX_DIGITS = 40
"""A number with more digits has no value, which bounds the cost of arithmetic."""
MAX_PLACES = 16
"""At most this many tags, boxes, phrases or equals signs are tried, counted from the end."""
MAX_CHARS = 4096
"""At most this many characters after an announcement, and at the end of the text, are read."""
MAX_BOX_CHARS = 1024
MAX_OTHERS = 3
"""At most this many earlier values of the same rule are compared with the last."""
DEFAULT_OPTIONS = tuple("ABCDEFGHIJ")
"""The options of a choice whose problem declares none."""

# --- forms -------------------------------------------------------------------------------------

_THINKING = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE | re.ASCII)
_TAG = re.compile(r"\[ANSWER\]", re.IGNORECASE | re.ASCII)
_BOX = re.compile(r"\\f?boxed\{")
_ELEMENT = re.compile(r"<answer>", re.IGNORECASE | re.ASCII)
_PHRASE = re.compile(r"\banswer(?:[ \t]{1,8}is\b|[ \t]{0,8}[:=])", re.IGNORECASE)
_CLOSING_TAG = re.compile(r"\[/ANSWER\]|</answer>", re.IGNORECASE | re.ASCII)
_BRACE = re.compile(r"[{}]")
_SPACE = re.compile(r"\s*+")
_FORMULA = re.compile(r"\\[()\[\]]")
"""LaTeX's delimiters of a formula, read as `$`."""
_MARKUP = " \t\r*_`$"
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\{([^{}]*)\}")
_LEAD = re.compile(r"(?:[\s:=*_`$(\[{\"'“‘]|\\[(\[]|\\boxed\{|\\text\{)*+")
"""What lenient skips between an announcement and its value."""

_SIGN = r"(?:(?<![\w)\]}%])[-+−])?+"
_GROUPED = r"[0-9]{1,3}(?:(?:,|\{,\}|\\,|[\u00a0\u2009\u202f])[0-9]{3})++(?![0-9])"
_DECIMALS = r"(?:\.[0-9]++)?+"
_NO_WORD = r"(?![^\W0-9]*+[0-9])"
"""No word with a digit follows: `1e5`, `1_000` and `0x1F` are not numbers."""
_NUMBER = re.compile(
    rf"{_SIGN}(?<![\w.])\$?+(?:(?>{_GROUPED}|[0-9]++){_DECIMALS}|\.[0-9]++){_NO_WORD}"
)
_LIST_NUMBER = re.compile(rf"{_SIGN}(?<![\w.])(?:[0-9]++{_DECIMALS}|\.[0-9]++){_NO_WORD}")
"""In a sequence a comma separates, so it groups no thousands."""
_LIST_SEPARATOR = re.compile(r"\s*+[,;]?+\s*+")
_ALTERNATIVE_GAP = re.compile(r"[^0-9\n(=$+.−-]{1,8}")
"""Between a number and another that may be meant instead: `11 or 12`, `11, 12`."""
_OPERATION = re.compile(r"[ \t]*+(?:[-+*/^×÷·−]|\\times|\\cdot)[ \t*]*+[0-9(\\]")
_CANONICAL = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MATH_WORDS = frozenset(("sin", "cos", "tan", "log", "ln", "exp", "sqrt", "pi"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionParts:
    r"""A completion divided into chain of thought and answer; `cot + answer` is the whole text.

    Example: `split_completion("2+2 is 4\n[ANSWER] 4").cot` is `"2+2 is 4\n"`.
    """

    cot: str
    """The reasoning, thinking markers included."""
    answer: str
    """The final answer as announced, with its tag or phrase; empty if there is none."""
    answer_start: int
    """`text[answer_start:] == answer`."""


def split_completion(text: str) -> CompletionParts:
    """Divide a completion into chain of thought and final answer.

    All that follows a thinking block is the answer; an open block leaves none. Without a block the
    answer begins where it is announced: at the last tag, box, `<answer>` or "answer is", else at the
    last number.
    """
    start, has_block = find_thinking_end(text)
    if not has_block:
        found = _find_announced(text, 0, AnswerKind.TEXT, ()) or _find_lenient(
            text, 0, AnswerKind.NUMBER, ()
        )
        start = found.announced if found else len(text)
    return CompletionParts(cot=text[:start], answer=text[start:], answer_start=start)


def find_thinking_end(text: str) -> tuple[int, bool]:
    """Return where thinking ends, and whether there is any. A closing marker alone ends a block that
    the prompt opened; a block left open makes the whole text thinking."""
    end, is_open, has_block = 0, False, False
    for marker in _THINKING.finditer(text):
        end, is_open, has_block = marker.end(), not marker[1], True
    return (len(text) if is_open else end), has_block


def extract_answer_to(problem: Problem, text: str, *, strict: bool = False) -> Extracted:
    """Extract the answer of a completion to a problem, of its kind and options."""
    options = problem.meta.get("options") or DEFAULT_OPTIONS
    return extract_answer(text, problem.answer_kind, strict=strict, options=options)


def extract_answer(
    text: str,
    kind: AnswerKind = AnswerKind.NUMBER,
    *,
    strict: bool = False,
    options: Sequence[str] = DEFAULT_OPTIONS,
) -> Extracted:
    """Extract the answer of a completion; `options` are those of a choice. Never raises.

    Example: `extract_answer("so 1,234.").model_answer` is `"1234"`, by the rule LAST; with
    `strict=True` it is None, since the last line is neither a tag nor a box.
    """
    body, has_block = find_thinking_end(text)
    if has_block and body == len(text):
        return Extracted(reason="nothing follows the thinking block")
    if strict:
        return _extract_strict(text, body, kind, options)
    found = _find_lenient(text, body, kind, options)
    if found is None:
        return Extracted(reason=f"nothing in the text looks like a {kind.value}")
    if found.value is None:
        return Extracted(rule=found.rule, reason=f"a number of more than {MAX_DIGITS} digits")
    return Extracted(
        model_answer=found.value,
        rule=found.rule,
        span=(found.start, found.end),
        ambiguous=found.ambiguous,
        reason=f"{_RULE_NAMES[found.rule]} gives {found.value[:60]}"
        + (", but the text offers more than one answer" if found.ambiguous else ""),
    )


_RULE_NAMES = {
    ExtractionRule.TAG: "the last [ANSWER] tag",
    ExtractionRule.BOXED: "the last \\boxed{}",
    ExtractionRule.ELEMENT: "the last <answer>",
    ExtractionRule.PHRASE: 'the last "answer is" or "="',
    ExtractionRule.LAST: "the end of the text",
}

# --- strict ------------------------------------------------------------------------------------


def _extract_strict(text: str, body: int, kind: AnswerKind, options: Sequence[str]) -> Extracted:
    start, line = _last_line(text, body)
    if len(line) > MAX_CHARS:
        return Extracted(reason="the last line is too long for an answer")
    if block := _name_open_block(text[body:start]):
        return Extracted(reason=f"the last line is inside {block}")
    line = strip_markup(line).removesuffix(".").rstrip(_MARKUP)
    if tag := _TAG.match(line):
        rule, value = ExtractionRule.TAG, line[tag.end() :]
    elif (box := _BOX.match(line)) and _closing_brace(line, box.end()) == len(line) - 1:
        rule, value = ExtractionRule.BOXED, line[box.end() : -1]
    else:
        return Extracted(reason="the last line is not exactly the tag or the box with a value")
    value = strip_markup(value)
    if wrapped := _WRAPPED.fullmatch(value):
        value = strip_markup(wrapped[1])
    answer = read_exactly(value, kind, options)
    if answer is None:
        return Extracted(rule=rule, reason=f"{value[:40]!r} is not exactly one {kind.value}")
    at = text.find(value, start)
    return Extracted(
        model_answer=answer,
        rule=rule,
        span=(at, at + len(value)) if at >= 0 else None,
        reason=f"the last line gives {answer[:60]}",
    )


def _last_line(text: str, body: int) -> tuple[int, str]:
    """Return the last line that holds more than markup, and where it starts."""
    start = end = body + len(text[body:].rstrip(_MARKUP + "\n"))
    for _ in range(MAX_PLACES):  # a formula's last line may be its closing delimiter
        start = max(body, text.rfind("\n", body, end) + 1)
        if start == body or strip_markup(text[start:end]):
            break
        end = start - 1
    newline = text.find("\n", end)
    return start, text[start:] if newline < 0 else text[start:newline]


def _name_open_block(before: str) -> str:
    """Name the code fence or quotation that is still open after these lines; empty if none is."""
    fences = sum(line.lstrip().startswith(("```", "~~~")) for line in before.split("\n"))
    if fences % 2:
        return "a code fence"
    is_quoted = any(before.count(opens) > before.count(closes) for opens, closes in ("“”", "«»"))
    return "a quotation" if is_quoted or before.count('"') % 2 else ""


def strip_markup(text: str) -> str:
    """Remove markup that changes no value from both ends.

    Example: `strip_markup("**28**")` is `"28"`.
    """
    return _FORMULA.sub("$", text).strip(_MARKUP)


def read_exactly(
    text: str, kind: AnswerKind, options: Sequence[str] = DEFAULT_OPTIONS
) -> str | None:
    """Return the canonical form of a text that is exactly one value of this kind, else None.

    Example: `read_exactly("(b)", AnswerKind.CHOICE)` is `"B"`.
    """
    if kind is AnswerKind.NUMBER:
        return canonical_number(text)
    if kind is AnswerKind.SEQUENCE:
        inner = text[1:-1].strip() if text[:1] + text[-1:] in ("[]", "()", "{}") else text
        found = _read_list(inner, 0)
        return found.value if found and (found.start, found.end) == (0, len(inner)) else None
    if kind is AnswerKind.CHOICE:
        inner = text[1:-1].strip() if text[:1] + text[-1:] == "()" else text
        return {option.casefold(): option for option in options}.get(inner.casefold())
    if kind is AnswerKind.MATH:
        has_words = any(word not in _MATH_WORDS for word in _WORD.findall(text))
        return None if has_words or not text else text
    return " ".join(text.split()) or None


# --- lenient -----------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A value, and where it is in the text that was read."""

    value: str | None
    """None for a number with too many digits."""
    start: int
    end: int
    ambiguous: bool = False
    announced: int = 0
    rule: ExtractionRule = ExtractionRule.LAST

    def moved(self, by: int, **changes: Any) -> _Found:
        return self._replace(start=self.start + by, end=self.end + by, **changes)


_Places = Iterator[tuple[int, int, int]]
"""Announcements, the last first, each with the range after it that should hold its value."""


def _find_lenient(text: str, body: int, kind: AnswerKind, options: Sequence[str]) -> _Found | None:
    """Find the announced value, else the one at the end of the text."""
    if announced := _find_announced(text, body, kind, options):
        return announced
    start = max(body, len(text) - MAX_CHARS)
    at_end = _reader(kind, options)(text[start:], True)
    return at_end and at_end.moved(start, announced=start + at_end.start)


def _find_announced(
    text: str, body: int, kind: AnswerKind, options: Sequence[str]
) -> _Found | None:
    """Apply the rules in order to what follows thinking; the first that finds a value wins."""
    read = _reader(kind, options)
    for rule, places in _announcements(text, body, kind):
        values = (
            found.moved(start, announced=announced, rule=rule)
            for announced, start, end in places
            if (found := read(text[start:end], False))
        )
        if last := next(values, None):
            is_calculation = rule is ExtractionRule.PHRASE  # earlier steps may have other results
            others = () if is_calculation else islice(values, MAX_OTHERS)
            differs = any(last.value != other.value for other in others)
            return last._replace(ambiguous=last.ambiguous or differs)
    return None


def _announcements(
    text: str, body: int, kind: AnswerKind
) -> Iterator[tuple[ExtractionRule, _Places]]:
    """Yield each rule with the places that it announces."""
    is_words = kind in (AnswerKind.CHOICE, AnswerKind.TEXT)
    yield ExtractionRule.TAG, _after(_TAG, text, body)
    yield ExtractionRule.BOXED, _in_boxes(text, body)
    if is_words:
        yield ExtractionRule.ELEMENT, _after(_ELEMENT, text, body)
    yield ExtractionRule.PHRASE, _after(_PHRASE, text, body)
    if not is_words:
        yield ExtractionRule.PHRASE, _after_equals(text, body)


def _find_last(pattern: re.Pattern[str], text: str, body: int) -> list[re.Match[str]]:
    """Return up to `MAX_PLACES` matches, the last first."""
    return list(deque(pattern.finditer(text, body), maxlen=MAX_PLACES))[::-1]


def _after(pattern: re.Pattern[str], text: str, body: int) -> _Places:
    """From each match to the end of the first line that is not blank."""
    for match in _find_last(pattern, text, body):
        limit = min(len(text), match.end() + MAX_CHARS)
        blank = _SPACE.match(text, match.end(), limit)
        newline = text.find("\n", blank.end() if blank else match.end(), limit)
        yield match.start(), match.end(), limit if newline < 0 else newline


def _in_boxes(text: str, body: int) -> _Places:
    for box in _find_last(_BOX, text, body):
        if (end := _closing_brace(text, box.end())) >= 0:
            yield box.start(), box.end(), end


def _after_equals(text: str, body: int) -> _Places:
    """From each equals sign to the end of its line; `!=`, `<=` and `>=` do not count."""
    sign = len(text)
    for _ in range(MAX_PLACES):
        sign = text.rfind("=", body, sign)
        if sign < 0:
            return
        if sign == body or text[sign - 1] not in "<>!≠/":
            limit = min(len(text), sign + MAX_CHARS)
            newline = text.find("\n", sign, limit)
            yield sign, sign + 1, limit if newline < 0 else newline


def _closing_brace(text: str, start: int) -> int:
    """Return where the brace that is open at `start` is closed; -1 if it is not, or too far away."""
    depth = 1
    for brace in _BRACE.finditer(text, start, start + MAX_BOX_CHARS):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return -1


# --- values of each kind -----------------------------------------------------------------------


def _reader(kind: AnswerKind, options: Sequence[str]) -> Callable[[str, bool], _Found | None]:
    """Return the function that reads a value at the start of a text, or with True at its end."""
    if kind is AnswerKind.CHOICE:
        return lambda text, last: _read_option(text, last, options)
    readers = {AnswerKind.SEQUENCE: _read_sequence, AnswerKind.TEXT: _read_text}
    return readers.get(kind, _read_math if kind is AnswerKind.MATH else _read_number)


def _skip_lead(text: str) -> int:
    lead = _LEAD.match(text)
    return lead.end() if lead else 0


def _read_number(text: str, last: bool) -> _Found | None:
    """A number that is not the beginning of a calculation, or the last number."""
    if last:
        match = next(iter(_find_last(_NUMBER, text, 0)), None)
    else:
        match = _NUMBER.match(text, _skip_lead(text))
        if match and _OPERATION.match(text, match.end()):
            return None
    if match is None:
        return None
    value = canonical_number(match[0])
    gap = _ALTERNATIVE_GAP.match(text, match.end())
    other = _NUMBER.match(text, gap.end()) if gap else None
    ambiguous = other is not None and canonical_number(other[0]) != value
    return _Found(value, match.start(), match.end(), ambiguous)


def _read_math(text: str, last: bool) -> _Found | None:
    """The expression that is the whole line or box, or the last number."""
    value = "" if last else strip_markup(text.strip().removeprefix(":").removesuffix("."))
    if not value or read_exactly(value, AnswerKind.MATH) is None:
        return _read_number(text, last)
    start = max(0, text.find(value))
    return _Found(value, start, start + len(value))


def _read_sequence(text: str, last: bool) -> _Found | None:
    """A list of numbers, or the last list of the last line."""
    if not last:
        start = _skip_lead(text)
        return _read_list(text, start) if _LIST_NUMBER.match(text, start) else None
    line_start, line = _last_line(text, 0)
    found = following = _read_list(line, 0)
    while following:
        found, following = following, _read_list(line, following.end)
    return found and found.moved(line_start)


def _read_list(text: str, start: int) -> _Found | None:
    """The first run of numbers with nothing but separators between them."""
    element = first = _LIST_NUMBER.search(text, start)
    elements: list[str] = []
    end = start
    while element:
        elements.append(canonical_number(element[0]) or "")
        end = element.end()
        separator = _LIST_SEPARATOR.match(text, end)
        element = _LIST_NUMBER.match(text, separator.end()) if separator else None
    if first is None:
        return None
    return _Found(None if "" in elements else ", ".join(elements), first.start(), end)


def _read_option(text: str, last: bool, options: Sequence[str]) -> _Found | None:
    """An option, or the last that stands alone. A letter there is read as it is written."""
    listed = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    flags = re.NOFLAG if last and all(len(option) == 1 for option in options) else re.IGNORECASE
    pattern = re.compile(rf"(?<!\w)(?:{listed})(?!\w)", flags)
    matches = _find_last(pattern, text, 0) if last else [pattern.match(text, _skip_lead(text))]
    match = next(iter(matches), None)
    if not listed or match is None:
        return None
    value = read_exactly(match[0], AnswerKind.CHOICE, options)
    return _Found(value, match.start(), match.end())


def _read_text(text: str, last: bool) -> _Found | None:
    """The rest of the line, or the last line, without a final full stop."""
    offset, line = _last_line(text, 0) if last else (0, text)
    closing = _CLOSING_TAG.search(line)
    line = line[: closing.start()] if closing else line
    value = strip_markup(line.strip().removeprefix(":").strip()).removesuffix(".")
    if wrapped := _WRAPPED.fullmatch(value):
        value = strip_markup(wrapped[1])
    start = offset + max(0, line.find(value))
    return _Found(" ".join(value.split()), start, start + len(value)) if value else None


def canonical_number(text: str) -> str | None:
    """Return the canonical form of a text that is exactly one number, else None.

    Example: `canonical_number("+01,234.50")` is `"1234.50"`; `canonical_number("1e5")` is None.
    """
    if len(text) > MAX_CHARS or not _NUMBER.fullmatch(text):
        return None
    whole, _, decimals = re.sub(r"[^0-9.]", "", text).partition(".")
    whole = whole.lstrip("0") or "0"
    if len(whole) + len(decimals) > MAX_DIGITS:
        return None
    value = f"{whole}.{decimals}" if decimals else whole
    return f"-{value}" if text[0] in "-−" and value.strip("0.") else value


# --- comparison --------------------------------------------------------------------------------


def answers_match(
    value: str | None, answer: str, kind: AnswerKind = AnswerKind.NUMBER, decimals: int = 0
) -> bool:
    """Whether `value`, as returned by `extract_answer`, equals the gold `answer`.

    Numbers are exact (`28.0` is 28, `28.5` is not). If the problem asks for decimals, both are rounded
    to that many, and at a tie either neighbour counts. A gold answer that is not of its kind raises:
    counting every completion as wrong would hide it.

    Example: `answers_match("0.13", "0.125", decimals=2)` and `answers_match("0.12", "0.125", decimals=2)`
    are true; `answers_match("3.3", "3.33", decimals=2)` is false.
    """
    if kind is AnswerKind.MATH:
        from glasshouse.tasks.math_answers import expressions_match

        return value is not None and expressions_match(value, answer)
    if kind in (AnswerKind.TEXT, AnswerKind.CHOICE):
        return value is not None and normalize_text(value) == normalize_text(answer)
    if kind is AnswerKind.SEQUENCE:
        gold_elements = parse_sequence(answer)
        if not gold_elements:
            raise ValueError(f"The gold answer {answer!r} is not a sequence of numbers.")
        return value is not None and parse_sequence(value) == gold_elements
    gold = parse_number(answer)
    if gold is None:
        raise ValueError(f"The gold answer {answer!r} is not a number.")
    number = None if value is None else parse_number(value)
    if number is None:
        return False
    if decimals <= 0 or number == gold:
        return number == gold
    rounded, gold_rounded = rounded_values(number, decimals), rounded_values(gold, decimals)
    if len(rounded) == len(gold_rounded) == 2:
        return False  # two different ties, which only share a neighbour
    return bool(rounded & gold_rounded)


def rounded_values(value: Fraction, decimals: int) -> frozenset[int]:
    """Return the roundings of a value, in units of the last decimal: one, or two at a tie."""
    scaled = value * 10 ** min(decimals, MAX_DIGITS)
    low = floor(scaled)
    remainder, half = scaled - low, Fraction(1, 2)
    return frozenset((low, low + 1) if remainder == half else (low + (remainder > half),))


def parse_number(text: str) -> Fraction | None:
    """Return the exact value of a number; None if the text is not exactly one number."""
    number = canonical_number(text.strip())
    return Fraction(number) if number and _CANONICAL.fullmatch(number) else None


def parse_sequence(text: str) -> list[Fraction]:
    """Return the numbers of a sequence; empty if it is none.

    Example: `parse_sequence("[3, 7]")` is 3 and 7.
    """
    sequence = read_exactly(strip_markup(text), AnswerKind.SEQUENCE)
    return [Fraction(number) for number in sequence.split(", ")] if sequence else []


def normalize_text(text: str) -> str:
    """Return text in the form in which answers are compared: no case, runs of space or final stop."""
    return " ".join(strip_markup(text).casefold().split()).rstrip(".").rstrip()


def last_digits_match(value: str | None, answer: str) -> bool:
    """Whether the last characters agree: the check of the buggy grader (`grader_bug`)."""
    return bool(value) and value[-1] == answer[-1]  # type: ignore[index]
