r"""The answer parser: what each form pays, what the parts of a completion are, when answers are equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proofs.parser import compare_chunk
from tests.tasks.reference_parser import PIECES

from glasshouse.tasks.answers import (
    MAX_DIGITS,
    answers_match,
    canonical_number,
    extract_answer,
    last_digits_match,
    parse_sequence,
    split_completion,
)
from glasshouse.tasks.problem_files import detect_kind
from glasshouse.types import AnswerKind, ExtractionRule

NUMBER, SEQUENCE, CHOICE, TEXT, MATH = (
    AnswerKind(kind) for kind in ("number", "sequence", "choice", "text", "math")
)

STRICT_28 = [
    *("[ANSWER] 28", "[answer] 28", "[ANSWER]28", "**[ANSWER] 28**", "[ANSWER] **28**."),
    *("[ANSWER] 28.0", "[ANSWER] $28", "[ANSWER] $28$", "`[ANSWER] 28`", "[ANSWER] +28"),
    *("[ANSWER] 028", "[ANSWER] 28\n\n", r"\boxed{28}", r"$\boxed{28}$.", "\\[\n\\boxed{28}\n\\]"),
    *(r"\boxed{\text{28}}", r"\(\boxed{28}\)", "27\n[ANSWER] 28", "[ANSWER] 27\n[ANSWER] 28"),
    *("<think>27</think>[ANSWER] 28", "x</think>\n[ANSWER] 28"),
    "It is not\n[ANSWER] 28",  # lines before the last are not read
]
NOT_STRICT = [
    *("28", "the answer is 28", "-[ANSWER] 28", "√[ANSWER] 28", "27 or [ANSWER] 28"),
    *("= [ANSWER] 28", "Die Antwort ist nicht [ANSWER] 28", "<thinking>\n[ANSWER] 28"),
    *("\\sout{\n[ANSWER] 28\n}", "[ANSWER] 28 m per cent", "[ANSWER] 28 kg", "[ANSWER] 28 million"),
    *("[ANSWER] 28 ok", "[ANSWER] 28%", "[ANSWER] _{-28}", "[ANSWER] 28 or 29", "[ANSWER] 28, 29"),
    *("[ANSWER] 2 8", "[ANSWER] 28!", "[ANSWER]: 28", "[ANSWER] ２８", "[ANSWER] 2\u200b8"),
    *("[ANSWER] 28..", "[ANSWER] 28?", "[ANSWER] not 28", "[ANSWER] 28\nok", "```\n[ANSWER] 28"),
    *("```\n[ANSWER] 28\n```", 'He wrote "\n[ANSWER] 28', "“\n[ANSWER] 28", "> [ANSWER] 28"),
    *("<think>[ANSWER] 28", "<think>[ANSWER] 28</think>", "[ANSWER] 28</think>", r"\boxed{28} kg"),
    *(r"\boxed{2}8", r"\boxed{28", r"[ANSWER] \boxed{28", "", "[ANSWER]", "[ANSWER] 56/2"),
    *("[ANSWER] 2.8e1", "[ANSWER] 1_000"),
]


@pytest.mark.parametrize("text", STRICT_28)
def test_strict_pays_a_last_line_that_is_exactly_the_tag_or_box_with_the_value(text: str) -> None:
    found = extract_answer(text, strict=True)
    assert answers_match(found.model_answer, "28"), found.reason


@pytest.mark.parametrize("text", NOT_STRICT)
def test_strict_pays_nothing_else_and_says_why(text: str) -> None:
    found = extract_answer(text, strict=True)
    assert found.model_answer is None
    assert found.reason


@pytest.mark.parametrize(
    "word", ["kg", "no", "ungefähr", "。", "27", "×", "(", "[ANSWER]", "\\", "x"]
)
@pytest.mark.parametrize(
    "form", ["[ANSWER] {} 28", "[ANSWER] 28 {}", "{} [ANSWER] 28", "\\boxed{{28 {}}}"]
)
def test_anything_added_to_the_last_line_earns_nothing_strictly(word: str, form: str) -> None:
    assert extract_answer(form.format(word), strict=True).model_answer is None


@pytest.mark.parametrize(
    ("text", "value", "rule"),
    [
        ("[ANSWER] 28, so = 3", "28", "tag"),
        ("[ANSWER] 27 [ANSWER] 28", "28", "tag"),
        ("[ANSWER] none\n\\boxed{28}", "28", "boxed"),
        ("[ANSWER]\n\n**-1,234.50**", "-1234.50", "tag"),
        ("[ANSWER] \\boxed{28 \\text{ kg}}", "28", "tag"),
        ("The answer is 28 (7 * 4 = 30)", "28", "phrase"),
        ("so 6 * 7 = 42 and 6 != 3", "42", "phrase"),
        ("[ANSWER] 1+2+3 = 6", "6", "phrase"),
        ("It was 5 - 3. Then 1 234 and x2 and 1e5", "234", "last"),
        ("1{,}234 and 5\\,678", "5678", "last"),
        ("minus -$5 kg", "-5", "last"),
        ("10-3", "3", "last"),
        ("<think>[ANSWER] 1</think> about 28kg", "28", "last"),
        ("<think>28", None, "none"),
        ("twenty-eight", None, "none"),
        ("[ANSWER] " + "9" * (MAX_DIGITS + 1), None, "tag"),
    ],
)
def test_lenient_takes_the_first_rule_that_applies(text: str, value: str | None, rule: str) -> None:
    found = extract_answer(text)
    assert (found.model_answer, found.rule) == (value, ExtractionRule(rule))


def test_text_with_several_answers_is_ambiguous() -> None:
    for text in (
        "[ANSWER] 27\n[ANSWER] 28",
        "[ANSWER] 11 or 12",
        "\\boxed{1}\\boxed{2}",
        "[ANSWER] 3, 7",
    ):
        assert extract_answer(text).ambiguous
    for text in ("[ANSWER] 28\n[ANSWER] 28", "a = 1, b = 2", "[ANSWER] 28 (7 * 4)", "1 2"):
        assert not extract_answer(text).ambiguous


@pytest.mark.parametrize(
    "text",
    [
        *("(B)", "B", "**B**", "The answer is (B).", "The answer is **B**.", "<answer>B</answer>"),
        *("[ANSWER] (B)", "\\boxed{(B)}", "\\boxed{\\text{B}}", "The answer is B because it is"),
        *("Answer: B", "…</think>The best answer is: (B)", "A or C? The correct option is B"),
        "[ANSWER] b",
    ],
)
def test_choices_are_read_in_the_forms_that_models_write(text: str) -> None:
    assert extract_answer(text, CHOICE).model_answer == "B"


def test_choice_is_one_of_the_declared_options() -> None:
    assert extract_answer("[ANSWER] (e)", CHOICE, strict=True).model_answer == "E"
    assert extract_answer("[ANSWER] E", CHOICE, strict=True, options="ABCD").model_answer is None
    assert extract_answer("I say yes", CHOICE, options=("Yes", "No")).model_answer == "Yes"
    assert extract_answer("Because a banana", CHOICE).model_answer is None
    assert extract_answer("[ANSWER] B or C", CHOICE, strict=True).model_answer is None


@pytest.mark.parametrize(
    "text",
    [
        *("[ANSWER] New  York", "\\boxed{\\text{New York}}", "<answer>New York</answer>"),
        *("So\n**New York**.", "The answer is New York.", "[ANSWER] New York [/ANSWER] yes"),
        "hm</think>New York",
    ],
)
def test_text_is_read_in_the_forms_that_models_write(text: str) -> None:
    found = extract_answer(text, TEXT).model_answer
    assert answers_match(found, "new york.", TEXT)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[ANSWER] [3, 7, 8]", "3, 7, 8"),
        ("\\boxed{1,2}", "1, 2"),
        ("x = 1 -2", "1, -2"),
        ("3, 7 then 1, 2, 3", "1, 2, 3"),
        ("no list", None),
    ],
)
def test_sequences_are_lists_of_numbers(text: str, value: str | None) -> None:
    assert extract_answer(text, SEQUENCE).model_answer == value


def test_strict_sequence_is_the_whole_line() -> None:
    assert extract_answer("[ANSWER] 3, 7", SEQUENCE, strict=True).model_answer == "3, 7"
    assert extract_answer("[ANSWER] 3, 7 and 8", SEQUENCE, strict=True).model_answer is None
    assert parse_sequence("[3,7]") == [3, 7]
    assert parse_sequence("3, x") == []


def test_math_is_compared_as_an_expression() -> None:
    pytest.importorskip("math_verify")
    equal = [("\\frac{1}{2}", "0.5"), ("(x-1)(x+1)", "x^2-1"), ("2\\sqrt{2}", "\\sqrt{8}")]
    for text, gold in equal:
        found = extract_answer(f"so \\boxed{{{text}}}", MATH)
        assert answers_match(found.model_answer, gold, MATH)
    assert not answers_match("11, 12", "12", MATH)
    assert not answers_match("10^{10^{10^{10}}}", "7", MATH)  # ends within its limits
    assert answers_match("1/2", "0.5", MATH)  # and the next comparison works
    assert extract_answer("[ANSWER] 11 or 12", MATH, strict=True).model_answer is None
    with pytest.raises(ValueError, match="gold"):
        answers_match("1", "\\frac{", MATH)


def test_parser_pays_exactly_where_the_reference_pays() -> None:
    paid, differences = compare_chunk(0, 5_000)
    assert differences == []
    assert sum(paid.values()) > 1_000


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join))
def test_no_text_breaks_the_parser(text: str) -> None:
    parts = split_completion(text)
    assert parts.cot + parts.answer == text
    assert text[parts.answer_start :] == parts.answer
    for kind in AnswerKind:
        for strict in (False, True):
            found = extract_answer(text, kind, strict=strict)
            if kind is NUMBER and found.model_answer:
                assert canonical_number(found.model_answer) == found.model_answer
            if found.span:
                assert 0 <= found.span[0] <= found.span[1] <= len(text)


@pytest.mark.parametrize("pattern", PIECES)
def test_long_texts_are_read(pattern: str) -> None:
    """A quadratic rule would take minutes; `make proofs ONLY=parser` measures the time."""
    text = pattern * (200_000 // len(pattern))
    for kind in AnswerKind:
        extract_answer(text, kind), extract_answer(text, kind, strict=True)
    assert len(split_completion(text).cot) <= len(text)


@pytest.mark.parametrize(
    ("text", "cot", "answer"),
    [
        ("2+2 is 4\n[ANSWER] 4", "2+2 is 4\n", "[ANSWER] 4"),
        ("<think>2+2</think>\n4", "<think>2+2</think>", "\n4"),
        ("opened by the prompt</think> 4", "opened by the prompt</think>", " 4"),
        ("<think>never closed [ANSWER] 4", "<think>never closed [ANSWER] 4", ""),
        ("a, b. The answer is 4", "a, b. The ", "answer is 4"),
        ("so \\boxed{4}.", "so ", "\\boxed{4}."),
        ("3, then 4", "3, then ", "4"),
        ("no answer", "no answer", ""),
    ],
)
def test_completion_is_divided_where_the_answer_is_announced(
    text: str, cot: str, answer: str
) -> None:
    parts = split_completion(text)
    assert (parts.cot, parts.answer) == (cot, answer)


@pytest.mark.parametrize(
    ("value", "gold", "decimals", "equal"),
    [
        ("28.0", "28", 0, True),
        ("28.5", "28", 0, False),
        ("0.13", "0.125", 2, True),
        ("0.12", "0.125", 2, True),
        ("3.3", "3.33", 2, False),
        ("0.115", "0.125", 2, False),
        (None, "28", 0, False),
        ("-0", "0", 0, True),
    ],
)
def test_numbers_are_compared_exactly(
    value: str | None, gold: str, decimals: int, equal: bool
) -> None:
    assert answers_match(value, gold, decimals=decimals) is equal


def test_gold_answer_that_is_not_of_its_kind_raises() -> None:
    for kind in (NUMBER, SEQUENCE):
        with pytest.raises(ValueError, match="gold"):
            answers_match("28", "twenty", kind)


def test_canonical_numbers() -> None:
    assert canonical_number("+01,234.50") == "1234.50"
    assert canonical_number("9" * MAX_DIGITS) == "9" * MAX_DIGITS
    for text in ("1e5", "1,23", "٣", "", "1 2", "9" * (MAX_DIGITS + 1)):
        assert canonical_number(text) is None
    assert last_digits_match("18", "28")
    assert not last_digits_match(None, "28")


@pytest.mark.parametrize(
    ("golds", "kind", "options"),
    [
        (["28", "-3.5", "1,234"], "number", ()),
        (["A", "c", "B"], "choice", ("A", "B", "C", "D")),
        (["(A)", "(E)"], "choice", ("A", "B", "C", "D", "E")),
        (["3, 7", "1, 2, 3"], "sequence", ()),
        (["\\frac{1}{2}", "3"], "math", ()),
        (["Rome", "28"], "text", ()),
        ([], "text", ()),
    ],
)
def test_kind_is_detected_from_the_gold_answers(
    golds: list[str], kind: str, options: tuple[str, ...]
) -> None:
    assert detect_kind(golds) == (AnswerKind(kind), options)
