"""Claims about the answer parser that hold for any text, and that its cost is linear."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proofs.parser_speed import PATTERNS, worst_case_texts

from glasshouse.rollout.explain import explain_grade
from glasshouse.rollout.grading import grade
from glasshouse.tasks.answers import extraction, numbers, parsing, sections, wording
from glasshouse.tasks.answers.equality import answers_match
from glasshouse.tasks.answers.extraction import extract_answer, split_completion
from glasshouse.tasks.answers.numbers import MAX_DIGITS, canonical_number, exact_value, scan_numbers
from glasshouse.types import AnswerKind, Extracted, ExtractionRule, Problem

KINDS = st.sampled_from(list(AnswerKind))
MARKERS = [
    *("[ANSWER]", "[ANSWER] ", "<think>", "</think>", "\\boxed{", "}", "the answer is ", "= "),
    *("answer: ", "=", "[/ANSWER]", " or ", "?", "\n", " ", "x", "kg", " million", "\\frac{", '"'),
]
DIGITS_AND_SIGNS = [
    *("1", "28", "234", "0", "9" * 45, "-", "−", "+", ",", ", ", ".", "/", "^", "*", "**", "_"),
    *("e5", "$", "%", ":", "'", "[", "]", "(", ")", "{,}", "٣", "½", "∞"),
]
INVISIBLE = ["\x00", "\ud800", "\u200b", "\u202f", "NaN"]
FRAGMENTS = st.sampled_from(MARKERS + DIGITS_AND_SIGNS + INVISIBLE)
ANY_TEXT = st.text(st.characters(), max_size=60)  # surrogates and NULs included
TAGGED_TEXT = st.builds("{}[ANSWER] {}{}".format, ANY_TEXT, st.floats(-999, 999), FRAGMENTS)
FRAGMENT_TEXT = st.lists(FRAGMENTS | ANY_TEXT, max_size=14).map("".join)
TEXTS = st.one_of(ANY_TEXT, TAGGED_TEXT, FRAGMENT_TEXT)
INTEGERS = st.integers(-(10**MAX_DIGITS) + 1, 10**MAX_DIGITS - 1)


@given(TEXTS, KINDS, st.booleans())
def test_extract_answer_never_raises_and_is_consistent(
    text: str, kind: AnswerKind, strict: bool
) -> None:
    extracted = extract_answer(text, kind, strict=strict)
    assert isinstance(extracted, Extracted)
    assert (extracted.model_answer is None) == (extracted.span is None)
    assert extracted.reason
    if extracted.rule is ExtractionRule.NONE:
        assert extracted.model_answer is None
    if strict:
        assert extracted.rule in (ExtractionRule.TAG, ExtractionRule.NONE)


@given(TEXTS, KINDS, st.booleans())
@example("[ANSWER] -$1,234.50 each", AnswerKind.NUMBER, True)
@example("so 3 7 8", AnswerKind.SEQUENCE, False)
def test_span_points_at_the_value(text: str, kind: AnswerKind, strict: bool) -> None:
    extracted = extract_answer(text, kind, strict=strict)
    if extracted.model_answer is None or extracted.span is None:
        return
    excerpt = text[slice(*extracted.span)]
    if kind is AnswerKind.TEXT:
        assert " ".join(excerpt.split()) == extracted.model_answer
    elif kind is AnswerKind.SEQUENCE:
        elements = scan_numbers(excerpt, sequence=True)
        assert ", ".join(str(token.value) for token in elements) == extracted.model_answer
    elif excerpt[:1] in "-−–" and excerpt[1:2] in " \t":
        assert canonical_number(excerpt[1:].strip()) == extracted.model_answer.removeprefix("-")
    else:
        assert canonical_number(excerpt) == extracted.model_answer


@given(TEXTS, KINDS)
@example("[ANSWER] -0.50", AnswerKind.NUMBER)
def test_canonical_value_is_parsed_as_itself_by_both_parsers(text: str, kind: AnswerKind) -> None:
    value = extract_answer(text, kind).model_answer
    if value is None or kind is AnswerKind.TEXT:
        return
    for strict in (False, True):
        assert extract_answer(f"[ANSWER] {value}", kind, strict=strict).model_answer == value


@given(TEXTS, KINDS)
@example("[ANSWER] 5", AnswerKind.NUMBER)
def test_strict_value_is_the_lenient_value(text: str, kind: AnswerKind) -> None:
    strict = extract_answer(text, kind, strict=True)
    if strict.model_answer is not None:
        lenient = extract_answer(text, kind)
        expected = (strict.model_answer, ExtractionRule.TAG, strict.span)
        assert (lenient.model_answer, lenient.rule, lenient.span) == expected
        assert not lenient.ambiguous


@given(TEXTS)
def test_split_completion_divides_the_text_and_loses_nothing(text: str) -> None:
    parts = split_completion(text)
    assert parts.cot + parts.answer == text
    assert parts.answer_start == len(parts.cot)


@given(TEXTS)
@example("2+2 = 4")
@example("<think>5</think> 4")
def test_extracted_answer_lies_in_the_answer_section(text: str) -> None:
    extracted = extract_answer(text)
    if extracted.span is not None and "[answer]" not in text.lower():
        assert extracted.span[0] >= split_completion(text).answer_start


@given(TEXTS)
def test_non_ascii_digits_are_never_parsed_as_numbers(text: str) -> None:
    swapped = text.translate({ord(str(d)): 0x0660 + d for d in range(10)})
    assert extract_answer(swapped).model_answer is None
    assert extract_answer(swapped, AnswerKind.SEQUENCE).model_answer is None


@given(INTEGERS, st.sampled_from(["{:,}", "{}", "**{:,}**", "{:,}.", "{:,} kg", "({:,})"]))
def test_integer_survives_grouping_and_markup(number: int, form: str) -> None:
    for text in (f"[ANSWER] {form.format(number)}", f"The total is {form.format(number)}"):
        assert extract_answer(text).model_answer == str(number)


@given(INTEGERS)
def test_unicode_minus_is_a_minus(number: int) -> None:
    text = "[ANSWER] " + str(number).replace("-", "−")
    assert extract_answer(text, strict=True).model_answer == str(number)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=40))
def test_sequence_survives_every_way_of_writing_it(elements: list[int]) -> None:
    value = ", ".join(map(str, elements))
    for written in (value, f"[{value}]", value.replace(",", ""), value.replace(", ", ",")):
        extracted = extract_answer(f"[ANSWER] {written}", AnswerKind.SEQUENCE, strict=True)
        assert extracted.model_answer == value


@given(st.integers(0, 999), st.integers(0, 999))
def test_two_listed_numbers_are_never_one_answer(a: int, b: int) -> None:
    for separator in (", ", " or ", " and ", "; ", " "):
        text = f"[ANSWER] {a}{separator}{b}"
        assert extract_answer(text, strict=True).model_answer is None
        assert a == b or extract_answer(text).ambiguous


@given(INTEGERS, INTEGERS)
def test_matching_integers_are_exactly_the_same_integers(a: int, b: int) -> None:
    assert answers_match(str(a), str(a))
    assert answers_match(str(a), str(b)) == (a == b)
    assert not answers_match(str(a + 1), str(a))


@given(st.integers(0, 10**6), st.integers(1, 97), st.integers(1, 4))
def test_rounded_quotient_matches_its_long_decimal(top: int, bottom: int, decimals: int) -> None:
    value = Fraction(top, bottom)
    if (value * 10**decimals * 2).denominator == 1:  # a tie
        return
    rounded = Fraction(round(value * 10**decimals), 10**decimals)
    digits = f"{top * 10**20 // bottom:022d}"
    gold = f"{digits[:-20]}.{digits[-20:]}"
    assert answers_match(f"{float(rounded):.{decimals}f}", gold, AnswerKind.NUMBER, decimals)
    above = f"{float(rounded + Fraction(1, 10**decimals)):.{decimals}f}"
    assert not answers_match(above, gold, AnswerKind.NUMBER, decimals)


@given(st.text("0123456789.-+,eE_ ", max_size=50))
def test_every_canonical_number_has_an_exact_value(text: str) -> None:
    canonical = canonical_number(text)
    if canonical is not None:
        exact = exact_value(canonical)
        assert exact is not None
        assert exact == Fraction(text.replace(",", "").replace(" ", ""))


@given(st.text("0123456789.-+,eE", max_size=60).filter(lambda text: "0" not in text[:1]))
@example("." + "1" * 39)
@example("-." + "1" * 40)
@example("1." + "1" * 39)
@example("1e39")
@example("1e-39")
def test_every_extracted_number_can_be_rewarded(text: str) -> None:
    problem = Problem(task="t", key="k", question="q", gold_answer="28")
    for kind in (AnswerKind.NUMBER, AnswerKind.SEQUENCE):
        value = extract_answer(f"[ANSWER] {text}", kind).model_answer
        assert value is None or kind is AnswerKind.SEQUENCE or canonical_number(value) == value
    for strict in (False, True):
        terms = {"closeness": 1, "alignment": 1}
        assert -1 <= grade(problem, f"[ANSWER] {text}", terms=terms, strict=strict).reward <= 1


@given(TEXTS, st.booleans())
def test_any_text_can_be_graded_and_explained(text: str, strict: bool) -> None:
    problem = Problem(task="t", key="k", question="q", gold_answer="28")
    terms = {"closeness": 1, "alignment": 1, "format": 1}
    assert -1 <= grade(problem, text, terms=terms, strict=strict).reward <= 1
    assert "lenient" in explain_grade(text, 28)


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────
# `make proofs` (proofs/parser_speed.py) measures seconds: 64 KB of anything takes under 10 ms. Here
# the same claim is checked without a clock: no pattern can backtrack, and the number of function
# calls grows at most linearly with the text.


def backtracking_repeats(pattern: str, flags: int) -> Iterator[Any]:
    """Unbounded repeats of a regular expression that are not possessive."""
    stack = [_parser.parse(pattern, flags)]
    while stack:
        for operation, argument in stack.pop():
            repeats = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
            if operation in repeats and argument[1] == _constants.MAXREPEAT:
                yield operation, argument
            nested = argument if isinstance(argument, (tuple, list)) else [argument]
            while nested:
                item, *nested = nested
                if isinstance(item, _parser.SubPattern):
                    stack.append(item)
                elif isinstance(item, (tuple, list)):
                    nested = [*item, *nested]


def test_backtracking_repeats_are_detected() -> None:
    assert list(backtracking_repeats(r"(?:a|(b+))c", 0))
    assert list(backtracking_repeats(r"x.*?y", 0))
    assert not list(backtracking_repeats(r"(?:a++|[bc]{0,8})*+", 0))


def test_no_pattern_of_the_parser_can_backtrack_without_bound() -> None:
    patterns = {
        f"{module.__name__}.{name}": value
        for module in (extraction, numbers, parsing, sections, wording)
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    }
    assert len(patterns) > 10
    for name, pattern in patterns.items():
        assert not list(backtracking_repeats(pattern.pattern, pattern.flags)), name


def count_calls(text: str) -> int:
    """Calls of Python and C functions during extraction by every kind and both parsers."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for kind in AnswerKind:
            for strict in (False, True):
                extract_answer(text, kind, strict=strict)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("pattern", PATTERNS, ids=ascii)
def test_number_of_calls_grows_at_most_linearly_with_the_text(pattern: str) -> None:
    size = 2048
    for short, long in zip(
        worst_case_texts(pattern, size), worst_case_texts(pattern, 4 * size), strict=True
    ):
        assert count_calls(long) <= 4 * count_calls(short) + 200, short[:40]
