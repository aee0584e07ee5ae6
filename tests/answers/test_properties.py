"""Claims about the parser that hold for any text, and about its time."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glasshouse.answers import equal, extract, split
from glasshouse.answers.numbers import DIGITS, canonical, scan, value_of
from glasshouse.rewards import explain, grade
from glasshouse.types import AnswerKind, Extracted, Problem, Rule

KINDS = st.sampled_from(list(AnswerKind))
MARKS = ["[ANSWER]", "[ANSWER] ", "<think>", "</think>", "\\boxed{", "}", "the answer is ", "= "]
MARKS += [
    "answer: ",
    "=",
    "[/ANSWER]",
    " or ",
    "?",
    "\n",
    " ",
    "x",
    "kg",
    " million",
    "\\frac{",
    '"',
]
DIGITS_AND_SIGNS = ["1", "28", "234", "0", "9" * 45, "-", "−", "+", ",", ", ", ".", "/", "^", "*"]
DIGITS_AND_SIGNS += ["**", "_", "e5", "$", "%", ":", "'", "[", "]", "(", ")", "{,}", "٣", "½", "∞"]
HIDDEN = ["\x00", "\ud800", "\u200b", "\u202f", "NaN"]
PIECES = st.sampled_from(MARKS + DIGITS_AND_SIGNS + HIDDEN)
ANYTHING = st.text(st.characters(), max_size=60)  # surrogates and NULs included
ANSWERED = st.builds("{}[ANSWER] {}{}".format, ANYTHING, st.floats(-999, 999), PIECES)
TEXTS = st.one_of(ANYTHING, ANSWERED, st.lists(PIECES | ANYTHING, max_size=14).map("".join))
INTEGERS = st.integers(-(10**DIGITS) + 1, 10**DIGITS - 1)


@settings(max_examples=600, deadline=None)
@given(TEXTS, KINDS, st.booleans())
def test_extract_never_raises_and_is_consistent(text: str, kind: AnswerKind, strict: bool) -> None:
    read = extract(text, kind, strict=strict)
    assert isinstance(read, Extracted)
    assert (read.value is None) == (read.span is None)
    assert read.reason
    if read.rule is Rule.NONE:
        assert read.value is None
    if strict:
        assert read.rule in (Rule.TAG, Rule.NONE)


@settings(max_examples=600, deadline=None)
@given(TEXTS, KINDS, st.booleans())
@example("[ANSWER] -$1,234.50 each", AnswerKind.NUMBER, True)
@example("so 3 7 8", AnswerKind.SEQUENCE, False)
def test_span_points_at_the_value(text: str, kind: AnswerKind, strict: bool) -> None:
    read = extract(text, kind, strict=strict)
    if read.value is None or read.span is None:
        return
    shown = text[slice(*read.span)]
    if kind is AnswerKind.TEXT:
        assert " ".join(shown.split()) == read.value
    elif kind is AnswerKind.SEQUENCE:
        assert ", ".join(str(t.value) for t in scan(shown, sequence=True)) == read.value
    elif read.reason and shown[:1] in "-−–" and shown[1:2] in " \t":
        assert canonical(shown[1:].strip()) == read.value.removeprefix("-")
    else:
        assert canonical(shown) == read.value


@settings(max_examples=600, deadline=None)
@given(TEXTS, KINDS)
@example("[ANSWER] -0.50", AnswerKind.NUMBER)
def test_canonical_value_is_read_as_itself_in_both_modes(text: str, kind: AnswerKind) -> None:
    value = extract(text, kind).value
    if value is None or kind is AnswerKind.TEXT:
        return
    for strict in (False, True):
        assert extract(f"[ANSWER] {value}", kind, strict=strict).value == value


@settings(max_examples=600, deadline=None)
@given(TEXTS, KINDS)
@example("[ANSWER] 5", AnswerKind.NUMBER)
def test_strict_value_is_the_lenient_value(text: str, kind: AnswerKind) -> None:
    strict = extract(text, kind, strict=True)
    if strict.value is not None:
        lenient = extract(text, kind)
        assert (lenient.value, lenient.rule, lenient.span) == (strict.value, Rule.TAG, strict.span)
        assert not lenient.ambiguous


@settings(max_examples=600, deadline=None)
@given(TEXTS)
def test_split_divides_the_text_and_loses_nothing(text: str) -> None:
    parts = split(text)
    assert parts.cot + parts.answer == text
    assert parts.start == len(parts.cot)


@settings(max_examples=600, deadline=None)
@given(TEXTS)
@example("2+2 = 4")
@example("<think>5</think> 4")
def test_answer_lies_in_the_answer_section(text: str) -> None:
    read = extract(text)
    if read.span is not None and "[answer]" not in text.lower():
        assert read.span[0] >= split(text).start


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_no_number_is_read_out_of_digits_that_are_not_ascii(text: str) -> None:
    swapped = text.translate({ord(str(d)): 0x0660 + d for d in range(10)})
    assert extract(swapped).value is None
    assert extract(swapped, AnswerKind.SEQUENCE).value is None


@given(INTEGERS, st.sampled_from(["{:,}", "{}", "**{:,}**", "{:,}.", "{:,} kg", "({:,})"]))
def test_integer_survives_grouping_and_dressing(number: int, form: str) -> None:
    for text in (f"[ANSWER] {form.format(number)}", f"The total is {form.format(number)}"):
        assert extract(text).value == str(number)


@given(INTEGERS)
def test_unicode_minus_is_a_minus(number: int) -> None:
    assert extract("[ANSWER] " + str(number).replace("-", "−"), strict=True).value == str(number)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=40))
def test_sequence_survives_every_way_of_writing_it(numbers: list[int]) -> None:
    value = ", ".join(map(str, numbers))
    for written in (value, f"[{value}]", value.replace(",", ""), value.replace(", ", ",")):
        read = extract(f"[ANSWER] {written}", AnswerKind.SEQUENCE, strict=True)
        assert read.value == value


@given(st.integers(0, 999), st.integers(0, 999))
def test_two_listed_numbers_are_never_one_answer(a: int, b: int) -> None:
    for joint in (", ", " or ", " and ", "; ", " "):
        text = f"[ANSWER] {a}{joint}{b}"
        assert extract(text, strict=True).value is None
        assert a == b or extract(text).ambiguous


@given(INTEGERS, INTEGERS)
def test_equal_integers_are_exactly_the_same_integers(a: int, b: int) -> None:
    assert equal(str(a), str(a))
    assert equal(str(a), str(b)) == (a == b)
    assert not equal(str(a + 1), str(a))


@given(st.integers(-(10**6), 10**6), st.integers(1, 97), st.integers(1, 4))
def test_rounded_quotient_equals_its_long_decimal(top: int, bottom: int, decimals: int) -> None:
    value = Fraction(top, bottom)
    rounded = Fraction(round(value * 10**decimals), 10**decimals)
    written = f"{float(rounded):.{decimals}f}"
    exact = f"{top * 10**20 // bottom:+022d}"
    gold = f"{exact[:-20]}.{exact[-20:]}" if top >= 0 else None
    if gold and (value * 10**decimals * 2).denominator != 1:  # no tie
        assert equal(written, gold, AnswerKind.NUMBER, decimals)
        above = f"{float(rounded + Fraction(1, 10**decimals)):.{decimals}f}"
        assert not equal(above, gold, AnswerKind.NUMBER, decimals)


@given(st.text("0123456789.-+,eE_ ", max_size=50))
def test_whatever_is_canonical_has_an_exact_value(text: str) -> None:
    plain = canonical(text)
    if plain is not None:
        exact = value_of(plain)
        assert exact is not None
        assert exact == Fraction(text.replace(",", "").replace(" ", ""))


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.booleans())
def test_any_text_can_be_graded_and_explained(text: str, strict: bool) -> None:
    problem = Problem(task="t", key="k", question="q", answer="28")
    given_ = grade(
        problem, text, terms={"closeness": 1, "alignment": 1, "format": 1}, strict=strict
    )
    assert -1 <= given_.reward <= 1
    assert "lenient" in explain(problem, text)


SIZE = 65_536
UNITS = [
    " ",
    "1",
    ",",
    "1,",
    "1 ",
    "12,34 ",
    "a",
    "[ANSWER]",
    "[ANSWER] 5 ",
    "[ANSWER",
    "{",
    "[1,2],",
]
UNITS += ["=", "= ", "= 5 ", "=1+", "answer is ", "answer is 5 ", "answer        ", "\\boxed{", "∞"]
UNITS += [
    "\\boxed{5}",
    "<think>",
    "</think>",
    "<",
    "[",
    "-",
    "$",
    "*",
    "1*",
    "_",
    "1e5 ",
    "٣",
    "\n",
]
UNITS += ["\n1", "\x00", "\udc00", "\u200b", "1.", "NaN ", "1 or ", "\\frac{1}{2}", "^{1}"]
UNITS += ["[ANSWER]\n", "[1,2],", "\n"]


def worst_texts(unit: str) -> list[str]:
    """A unit repeated, after a tag, before a tag, and in many blocks of each kind."""
    blocks = ["[ANSWER] {}", "answer is {}", "\\boxed{{{}}}", "={}\n"]
    return [
        *(unit * SIZE, "[ANSWER]" + unit * SIZE, "[ANSWER] 5 " + unit * SIZE),
        unit * (SIZE // len(unit) - 11) + " [ANSWER] 5",
        *(block.format((unit * 500)[:500]) * 200 for block in blocks),
        *(block.format((unit * 120)[:120]) * 800 for block in blocks),
    ]


@pytest.mark.alone
@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_64_kilobytes_of_anything_take_under_10_ms(unit: str) -> None:
    for text in worst_texts(unit):
        text = text[:SIZE]
        for kind in AnswerKind:
            for strict in (False, True):
                for _ in range(12):  # the best of several: others share this machine
                    start = time.perf_counter()
                    extract(text, kind, strict=strict)
                    taken = time.perf_counter() - start
                    if taken < 0.010:
                        break
                assert taken < 0.010, (text[:40], kind, strict, taken)
