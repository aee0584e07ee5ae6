"""What the answer parser extracts, case by case, as a person would read it."""

from __future__ import annotations

import pytest

from glasshouse.tasks.answers.equality import answers_match
from glasshouse.tasks.answers.extraction import extract_answer, split_completion
from glasshouse.types import AnswerKind, ExtractionRule

NUMBER, SEQUENCE, TEXT = AnswerKind.NUMBER, AnswerKind.SEQUENCE, AnswerKind.TEXT


@pytest.mark.parametrize(
    ("text", "value", "rule"),
    [
        # the four rules in order
        ("1+2+3 = 6\n[ANSWER] 28", "28", ExtractionRule.TAG),
        ("[ANSWER] 28\nand 5 = 5", "28", ExtractionRule.TAG),
        ("[answer] 28", "28", ExtractionRule.TAG),
        ("the result \\boxed{28}, the answer is 5", "28", ExtractionRule.BOXED),
        ("The answer is 28 since 1+2+3 = 6", "28", ExtractionRule.PHRASE),
        ("Final Answer: **28**", "28", ExtractionRule.PHRASE),
        ("1+2+3 + 4+5 = 6 + 9 = 15", "15", ExtractionRule.PHRASE),
        ("5-3=2", "2", ExtractionRule.PHRASE),
        ("x = -5", "-5", ExtractionRule.PHRASE),
        ("The sum is 28", "28", ExtractionRule.LAST),
        ("first 3, then 28 apples.", "28", ExtractionRule.LAST),
        ("28", "28", ExtractionRule.LAST),
        ("28, says GPT-4", "28", ExtractionRule.LAST),
        ("28 in step 2nd of x_{3}", "28", ExtractionRule.LAST),
        ("The answer is not 28", None, ExtractionRule.LAST),
        ("I do not think the answer is 28", None, ExtractionRule.PHRASE),
        ("x ≠ 28", None, ExtractionRule.LAST),
        ("No, the answer is 28", "28", ExtractionRule.PHRASE),
        ("28, as in step 2", "28", ExtractionRule.LAST),
        ("no idea", None, ExtractionRule.NONE),
        ("", None, ExtractionRule.NONE),
        # without a candidate, the next rule is tried
        ("[ANSWER] <number>, so 28", "28", ExtractionRule.TAG),
        ("[ANSWER] unknown\nis it 28", "28", ExtractionRule.LAST),
        ("the answer is hard; = 28", "28", ExtractionRule.PHRASE),
        ("3 <= 5, 28", "28", ExtractionRule.LAST),
        ("\\boxed{28", "28", ExtractionRule.LAST),
        # a candidate that cannot be parsed ends the search
        ("7 [ANSWER] 3/4", None, ExtractionRule.TAG),
        ("7 \\boxed{\\frac{1}{2}}", None, ExtractionRule.BOXED),
        ("7 the answer is 1_000", None, ExtractionRule.PHRASE),
        ("7 = 3/4", None, ExtractionRule.LAST),
        ("7 and then 10-3", None, ExtractionRule.LAST),
        ("7 or NaN", None, ExtractionRule.LAST),
        # the line of the tag
        ("[ANSWER]\n28", "28", ExtractionRule.TAG),
        ("[ANSWER] the sum is 28", "28", ExtractionRule.TAG),
        ("[ANSWER] 1+2+3 = 6", "6", ExtractionRule.TAG),
        ("[ANSWER] 28 = total", "28", ExtractionRule.TAG),
        ("[ANSWER] - 3", "-3", ExtractionRule.TAG),
        ("[ANSWER]-3", "-3", ExtractionRule.TAG),
        # think blocks
        ("<think>[ANSWER] 5</think> it is 6", "6", ExtractionRule.LAST),
        ("<think>[ANSWER] 5", None, ExtractionRule.NONE),
        ("[ANSWER] 5</think>[ANSWER] 6", "6", ExtractionRule.TAG),
        ("<think>5</think>", None, ExtractionRule.NONE),
    ],
)
def test_lenient_rules(text: str, value: str | None, rule: ExtractionRule) -> None:
    extracted = extract_answer(text)
    assert (extracted.model_answer, extracted.rule) == (value, rule), extracted.reason


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1,234", "1234"),
        ("12,345,678.90", "12345678.90"),
        ("12,34", None),
        ("0,123", None),
        ("1,2345", None),
        ("3,7,8", None),
        ("1 234", None),
        ("1\u202f234", "1234"),
        ("1\u2009234\u2009567", "1234567"),
        ("12\u202f34", None),
        ("1\u202f234\u00a0567", None),
        ("−7", "-7"),
        ("–7", "-7"),
        ("+7", "7"),
        ("-$1,234.50", "-1234.50"),
        ("$-5", "-5"),
        ("€5", "5"),
        ("5€", "5"),
        ("£3.50.", "3.50"),
        ("28%", "28"),
        ("28kg", "28"),
        ("28 cm2", "28"),
        ("**28**", "28"),
        ("_28_", "28"),
        ("`28`", "28"),
        ("<28>", "28"),
        ("(28)", "28"),
        ("28!", "28"),
        ("0021", "21"),
        ("-0", "0"),
        ("-0.00", "0.00"),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("5.", "5"),
        ("1e5", "100000"),
        ("1e-5", "0.00001"),
        ("2.8e1", "28"),
        ("-2.85E+1", "-28.5"),
        (".5e1", "5"),
        ("1e41", None),
        ("2.8 × 10^1", None),
        ("1E999999", None),
        ("1_000", None),
        ("0x1F", None),
        ("0xff", None),
        ("1.2.3", None),
        ("1'234", None),
        ("12:30", None),
        ("3/4", None),
        ("2^10", None),
        ("10^{5}", None),
        ("2*3", None),
        ("2(3)", None),
        ("1{,}234", None),
        ("5 ½", None),
        ("3 million", None),
        ("3k", None),
        ("2x", None),
        ("٣", None),
        ("１２", "12"),
        ("－１，２３４．５", "-1234.5"),
        ("28，5", None),
        ("28．5", "28.5"),
        ("28m²", "28"),
        ("minus 5", "-5"),
        ("negative 5", "-5"),
        ("minus -5", None),
        ("x minus 5", None),
        ("not 28", None),
        ("I cannot solve problem 28", None),
        ("√28", None),
        ("≥ 28", None),
        ("<28", None),
        ("~~28~~", None),
        ("28-million", None),
        ("28 squared", None),
        ("28\\times10", None),
        ("28 - y", None),
        ("28 times", "28"),
        ("28 times ten", None),
        ("28 apples", "28"),
        ("about 28", "28"),
        ("." + "1" * 39, "0." + "1" * 39),
        ("." + "1" * 40, None),
        ("1." + "1" * 39, "1." + "1" * 39),
        ("1٣", None),
        ("10²", None),
        ("NaN", None),
        ("-inf", None),
        ("∞", None),
        ("2\u200b8", None),
        ("2\x008", None),
        ("\u202e82", None),
        ("9" * 40, "9" * 40),
        ("9" * 41, None),
        ("9" * 5000, None),
    ],
)
def test_number_after_the_tag_is_what_a_person_reads(written: str, value: str | None) -> None:
    assert extract_answer(f"7 = 7 [ANSWER] {written}").model_answer == value


@pytest.mark.parametrize(
    ("text", "value", "ambiguous"),
    [
        ("[ANSWER] 27 [ANSWER] 28", "28", True),
        ("[ANSWER] 28 [ANSWER] 28", "28", False),
        ("[ANSWER] 11 or 12", "11", True),
        ("the answer is 11 or 12", "11", True),
        ("the answer is 27. No, the answer is 28", "28", True),
        ("\\boxed{27} \\boxed{28}", "28", True),
        ("it is 11 or 12", "12", True),
        ("[123, 45, 67]", "67", True),
        ("1 = 1, 2 = 2", "2", False),
        ("12 apples for 3 people", "3", False),
        ("[ANSWER] 28 (7 * 4 = 28)", "28", False),
    ],
)
def test_ambiguity_is_reported(text: str, value: str, ambiguous: bool) -> None:
    extracted = extract_answer(text)
    assert (extracted.model_answer, extracted.ambiguous) == (value, ambiguous)


@pytest.mark.parametrize(
    ("text", "ambiguous"),
    [
        ("[ANSWER] 27 [ANSWER] 28", True),
        ("[ANSWER] 28 [ANSWER] 28", False),  # one tag is expected, even if the second agrees
        ("[ANSWER] 11 or 12", True),
        ("[ANSWER] 28, 29", True),
        ("the answer is 28", False),
        ("\\boxed{28}", False),
        ("<think>[ANSWER] 28</think>", False),
        ("[ANSWER] 28\nwait", False),
    ],
)
def test_strict_parser_rejects(text: str, ambiguous: bool) -> None:
    extracted = extract_answer(text, strict=True)
    assert (extracted.model_answer, extracted.span, extracted.ambiguous) == (None, None, ambiguous)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[ANSWER] [3, 7, 8]", "3, 7, 8"),
        ("[ANSWER] 3, 7, 8", "3, 7, 8"),
        ("[ANSWER] 3 7 8", "3, 7, 8"),
        ("[ANSWER] 3,7,8.", "3, 7, 8"),
        ("[ANSWER] (3; -7; 08)", "3, -7, 8"),
        ("[ANSWER] 3, 7, and 8", "3, 7, 8"),
        ("[ANSWER] <3, 7>", "3, 7"),
        ("[ANSWER] 5", "5"),
        ("[ANSWER] [1, 234]", "1, 234"),
        ("[ANSWER] [1,234]", "1, 234"),
        ("[ANSWER] 3, 3/4", None),
        ("Merging [1, 2] and [3] gives\n[1, 3, 2]", "1, 3, 2"),
        ("the answer is [1, 2]", "1, 2"),
        ("\\boxed{1, 2}", "1, 2"),
        ("[ANSWER] " + "1, " * 129, None),
    ],
)
def test_sequences(text: str, value: str | None) -> None:
    assert extract_answer(text, SEQUENCE).model_answer == value


def test_sequence_with_an_alternative_is_ambiguous() -> None:
    assert extract_answer("[ANSWER] [1, 2] or [2, 1]", SEQUENCE).ambiguous
    assert extract_answer("[ANSWER] [1,234, 5]", SEQUENCE).ambiguous  # two elements, or three
    assert not extract_answer("[ANSWER] [1, 2]", SEQUENCE).ambiguous


def test_number_at_the_end_of_the_answer_window_is_never_cut() -> None:
    for blanks in range(490, 520):
        text = "[ANSWER]" + " " * blanks + "12345"
        assert extract_answer(text).model_answer in ("12345", None)
        assert extract_answer(text, strict=True).model_answer in ("12345", None)


def test_number_cut_by_the_tail_window_is_never_extracted() -> None:
    for length in range(4090, 4100):
        assert extract_answer("12345678" + " " * length).model_answer in ("12345678", None)


def test_thousands_of_tags_are_no_answer() -> None:
    assert extract_answer("[ANSWER] 5 " * 1000).model_answer == "5"
    assert extract_answer("[ANSWER] 5 " * 2000).model_answer is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so\n[ANSWER]  New   York \nbye", "New York"),
        ("**[ANSWER]** **Paris**", "Paris"),
        ("The answer is Paris", "Paris"),
        ("Paris", None),
        ("[ANSWER]", None),
    ],
)
def test_text_is_the_rest_of_the_line(text: str, value: str | None) -> None:
    assert extract_answer(text, TEXT).model_answer == value


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2+2\n[ANSWER] 4", "[ANSWER] 4"),
        ("[ANSWER] 3, no\n[ANSWER] 4", "[ANSWER] 4"),
        ("so \\boxed{4} it is", "\\boxed{4} it is"),
        ("so the answer is 4", "answer is 4"),
        ("2+2 = 4", "= 4"),
        ("four or 4", "4"),
        ("4", "4"),
        ("no idea", ""),
        ("<think>2+2</think>It is\n[ANSWER] 4", "It is\n[ANSWER] 4"),
        ("2+2</think>[ANSWER] 4", "[ANSWER] 4"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("[ANSWER] 4 <think>hm", ""),
    ],
)
def test_completion_is_split_into_cot_and_answer(text: str, answer: str) -> None:
    parts = split_completion(text)
    assert parts.answer == answer
    assert parts.cot + parts.answer == text
    assert text[parts.answer_start :] == answer


@pytest.mark.parametrize(
    ("value", "gold", "decimals", "matches"),
    [
        ("28", "28", 0, True),
        ("28.0", "28", 0, True),
        ("28.5", "28", 0, False),
        ("-28", "28", 0, False),
        (None, "28", 0, False),
        ("0", "0", 0, True),
        ("3.33", "3.33", 2, True),
        ("3.330", "3.33", 2, True),
        ("3.3333", "3.33", 2, True),
        ("3.3", "3.33", 2, False),
        ("3.34", "3.33", 2, False),
        ("3", "3.00", 2, True),
        ("3.5", "3.50", 2, True),
        ("0.12", "0.125", 2, True),  # the gold is an exact tie: both neighbours count
        ("0.13", "0.125", 2, True),
        ("0.125", "0.125", 2, True),
        ("0.14", "0.125", 2, False),
        ("0.115", "0.125", 2, False),  # another tie, with a neighbour in common
        ("0.125", "0.12", 2, True),
        ("-0.12", "-0.125", 2, True),
        ("-0.13", "-0.125", 2, True),
        ("9" * 40, "9" * 40, 0, True),
        ("9" * 39 + "8", "9" * 40, 0, False),
    ],
)
def test_matching_numbers(value: str | None, gold: str, decimals: int, matches: bool) -> None:
    assert answers_match(value, gold, NUMBER, decimals) is matches


def test_matching_sequences_and_texts() -> None:
    assert answers_match("3, 7.0, 8", "[3, 7, 8]", SEQUENCE, 0)
    assert not answers_match("3, 8, 7", "3, 7, 8", SEQUENCE, 0)
    assert not answers_match("3, 7", "3, 7, 8", SEQUENCE, 0)
    assert not answers_match(None, "3, 7, 8", SEQUENCE, 0)
    assert answers_match("new  YORK.", "New York", TEXT, 0)
    assert not answers_match("York", "New York", TEXT, 0)


@pytest.mark.parametrize(("gold", "kind"), [("3/4", NUMBER), ("", NUMBER), ("a, b", SEQUENCE)])
def test_gold_answer_that_cannot_be_parsed_is_an_error(gold: str, kind: AnswerKind) -> None:
    with pytest.raises(ValueError, match="gold answer"):
        answers_match("5", gold, kind, 0)
