"""Rewards: worked out by hand, then as claims over all answers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glasshouse.errors import ConfigError, RewardError
from glasshouse.rewards import REWARDS, combine, explain, grade, reward
from glasshouse.rewards.terms import PARTIAL, WRONG_AT_MOST, RewardInputs
from glasshouse.types import AnswerKind, Problem

SEEING = ("exact", "closeness", "alignment")
ALL = (*SEEING, "format")
GOLDS = st.integers(-(10**9), 10**9)
WEIGHTS = st.dictionaries(st.sampled_from(ALL), st.floats(0.01, 100), min_size=1)


def ask(gold: str, kind: str = "number", decimals: int = 0) -> Problem:
    return Problem(
        task="sum_digits",
        key="the-key",
        question="q",
        answer=gold,
        kind=AnswerKind(kind),
        decimals=decimals,
    )


def earns(name: str, gold: str, answer: str, kind: str = "number", decimals: int = 0) -> float:
    text = f"[ANSWER] {answer}" if answer else "I do not know"
    return grade(ask(gold, kind, decimals), text, terms={name: 1.0}, strict=True).reward


@pytest.mark.parametrize(
    ("name", "gold", "answer", "value"),
    [
        ("exact", "28", "28", 1),
        ("exact", "28", "27", -1),
        # -1 + 1.8 / (1 + 10 * relative error)
        ("closeness", "30", "30", 1),
        ("closeness", "30", "33", -1 + 1.8 / 2),
        ("closeness", "30", "27", -1 + 1.8 / 2),
        ("closeness", "30", "60", -1 + 1.8 / 11),
        ("closeness", "30", "130", -1 + 1.8 / (1 + 100 / 3)),
        ("closeness", "0", "1", -1 + 1.8 / 11),
        ("closeness", "1" * 40, "0", -1 + 1.8 / 11),
        # -1 + 1.8 * share in place, a quarter of it for each digit too many or too few
        ("alignment", "4140", "4140", 1),
        ("alignment", "4140", "4150", -1 + 1.8 * 3 / 4),
        ("alignment", "4140", "5141", -1 + 1.8 * 2 / 4),
        ("alignment", "30", "130", -1 + 1.8 * 2 / 3 / 4),
        ("alignment", "30", "1130", -1 + 1.8 * 2 / 4 / 16),
        ("alignment", "30", "-30", -1),
        ("alignment", "30", "41", -1),
        ("alignment", "30", "30.5", -1 + 1.8 / 4),
        ("format", "28", "27", 1),
        ("format", "28", "27 or 28", -1),
    ],
)
def test_reward_by_hand(name: str, gold: str, answer: str, value: float) -> None:
    assert earns(name, gold, answer) == pytest.approx(value, abs=1e-12)


def test_sequences_and_decimals_by_hand() -> None:
    assert earns("alignment", "3, 7, 8", "3, 7, 9", "sequence") == pytest.approx(-1 + 1.8 * 2 / 3)
    assert earns("alignment", "3, 7", "3, 7, 8", "sequence") == pytest.approx(-1 + 1.8 / 6)
    assert earns("closeness", "10, 10", "10, 11", "sequence") == pytest.approx(-1 + 1.8 * 0.75)
    assert earns("closeness", "10, 10", "10", "sequence") == pytest.approx(-1 + 1.8 * 0.5)
    assert earns("alignment", "3.33", "3.3", decimals=2) == pytest.approx(-1 + 1.8 * 2 / 3)
    assert earns("alignment", "new york", "old york", "text") == pytest.approx(-1 + 1.8 / 2)
    assert earns("closeness", "new york", "old york", "text") == -1


def test_zeros_after_the_point_are_no_digits_in_place() -> None:
    padded = earns("alignment", "4", "3." + "0" * 30)
    assert padded == earns("alignment", "4", "3") == -1
    assert earns("alignment", "40", "41.00") == earns("alignment", "40", "41") > -1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("strict", [False, True])
def test_no_answer_earns_the_minimum(name: str, strict: bool) -> None:
    assert grade(ask("28"), "no idea", terms={name: 1}, strict=strict).reward == -1
    assert grade(ask("28"), "", terms=dict.fromkeys(ALL, 1.0), strict=strict).reward == -1


@pytest.mark.parametrize("name", ALL)
def test_answer_refused_by_the_strict_reading_earns_no_partial_credit(name: str) -> None:
    for text in ("[ANSWER] 27 or 28", "The answer is 27", "[ANSWER] 27 [ANSWER] 29"):
        assert grade(ask("28"), text, terms={name: 1}, strict=True).reward == -1


@given(GOLDS, GOLDS, st.sampled_from(SEEING))
@example(30, 130, "alignment")
@example(10**9, 10**9 - 1, "closeness")
def test_wrong_answer_earns_less_than_a_right_one(gold: int, answer: int, name: str) -> None:
    value = earns(name, str(gold), str(answer))
    assert value == 1 if gold == answer else -1 <= value <= PARTIAL < 1


@given(GOLDS, st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from([1, -1]))
def test_closeness_falls_with_the_distance(gold: int, near: int, more: int, side: int) -> None:
    nearer = earns("closeness", str(gold), str(gold + side * near))
    farther = earns("closeness", str(gold), str(gold + side * (near + more)))
    assert nearer > farther


@given(st.integers(10**5, 10**6 - 1), st.integers(0, 5), st.integers(0, 5))
def test_alignment_rises_with_each_digit_put_in_place(gold: int, fewer: int, more: int) -> None:
    digits = str(gold)
    wrong = "".join("8" if d != "8" else "7" for d in digits)
    few, many = sorted((fewer, more))
    a, b = (earns("alignment", digits, wrong[: 6 - n] + digits[6 - n :]) for n in (few, many))
    assert (a < b) if few < many else (a == b)


@given(st.integers(10, 10**6), st.integers(1, 9))
def test_gold_inside_a_longer_answer_earns_little(gold: int, digit: int) -> None:
    for answer in (f"{digit}{gold}", f"{gold}{digit}"):
        assert earns("alignment", str(gold), answer) < -0.5
        assert earns("closeness", str(gold), answer) < -0.5


TEXTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "so ", "<think>1</think>", "[ANSWER] 3\n"]),
    st.sampled_from(["[ANSWER] ", "", "the answer is "]),
    st.sampled_from(["28", "28.0", "27", "128", "29", "28 or 27", "none", "0"]),
)


@settings(max_examples=300)
@given(WEIGHTS, st.sampled_from(["weights", "min"]), TEXTS, TEXTS, st.booleans())
@example({"exact": 1, "format": 2}, "weights", "28", "[ANSWER] 27", False)
@example({"closeness": 1, "format": 0.2}, "weights", "28", "[ANSWER] 27", False)
@example({"closeness": 1, "alignment": 1}, "min", "28", "[ANSWER] 27", False)
def test_no_combination_lets_a_wrong_answer_reach_a_right_one(
    weights: dict[str, float], how: str, one: str, other: str, strict: bool
) -> None:
    a, b = (grade(ask("28"), t, terms=weights, how=how, strict=strict) for t in (one, other))
    assert -1 <= a.reward <= 1
    blind = set(weights) == {"format"} or (how == "min" and "format" in weights and not strict)
    if a.correct and not b.correct and not blind:
        assert a.reward > b.reward


@given(st.floats(-1, 0.8), st.floats(-1, 0.8), st.floats(0.1, 10))
def test_combining_keeps_the_order_of_wrong_answers(a: float, b: float, weight: float) -> None:
    low, high = sorted((a, b))
    weights = {"closeness": 1.0, "format": weight}
    totals = [combine({"closeness": c, "format": 1}, weights, correct=False) for c in (low, high)]
    assert totals[0] < totals[1] or high - low < 1e-12


def test_combinations_by_hand() -> None:
    parts = {"exact": -1.0, "closeness": 0.5}
    assert combine(parts, {"exact": 1, "closeness": 3}) == pytest.approx(0.125)
    assert combine(parts, {"exact": 1, "closeness": 3}, "min") == -1
    assert combine(parts, {"exact": 0, "closeness": 3}, "min") == 0.5
    assert combine({"exact": -1, "format": 1}, {"exact": 1, "format": 0.2}) == pytest.approx(-2 / 3)
    held = combine({"exact": -1, "format": 1}, {"exact": 1, "format": 2}, correct=False)
    assert held == pytest.approx(-0.4)  # a right answer without its tag earns -1/3


@pytest.mark.parametrize(
    ("terms", "how", "sentence"),
    [
        ({"exactt": 1}, "weights", 'no reward "exactt". Did you mean "exact"'),
        ({"exact": 1}, "mean", 'combined by "mean"'),
        ({"exact": -1}, "weights", 'weight of the reward "exact" is -1'),
        ({"exact": math.nan}, "weights", 'weight of the reward "exact" is nan'),
        ({"exact": 0}, "weights", "No reward has a weight above 0"),
        ({}, "weights", "No reward has a weight above 0"),
    ],
)
def test_terms_that_make_no_reward_are_sentences(terms: dict, how: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        grade(ask("28"), "28", terms=terms, how=how)


@pytest.fixture
def broken() -> Iterator[None]:
    """A reward of the user's own that depends on the completion."""

    @reward("broken")
    def broken(given: RewardInputs) -> float:
        if "raise" in given.text:
            raise KeyError("lost")
        return {"nan": math.nan, "big": 1.5, "text": "a"}.get(given.text, 0.5)  # type: ignore[return-value]

    yield
    del REWARDS["broken"]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("text", ["raise", "nan", "big", "text", "raise \ud800" + "x" * 10_000])
def test_reward_that_fails_stops_with_the_completion_and_never_becomes_a_zero(text: str) -> None:
    with pytest.raises(RewardError) as caught:
        grade(ask("28"), text, terms={"exact": 1, "broken": 1})
    sentence = str(caught.value)
    assert '"broken"' in sentence
    assert "'the-key'" in sentence
    assert text[:5] in sentence
    assert len(sentence) < 1000
    sentence.encode()  # can be printed


@pytest.mark.usefixtures("broken")
def test_reward_added_by_a_user_is_weighed_like_any_other() -> None:
    given = grade(ask("28"), "[ANSWER] 28", terms={"exact": 1, "broken": 1})
    assert given.parts == {"exact": 1, "broken": 0.5}
    assert given.reward == 0.75
    assert "broken" not in WRONG_AT_MOST


def test_gold_that_cannot_be_read_stops_the_run() -> None:
    with pytest.raises(RewardError, match=r"'the-key'.*gold answer '1e5'"):
        grade(ask("1e5"), "[ANSWER] 5")


def test_grade_reports_both_readings_and_uses_the_configured_one() -> None:
    text = "The answer is 28"
    lenient, strict = grade(ask("28"), text), grade(ask("28"), text, strict=True)
    assert (lenient.correct, lenient.lenient, lenient.strict) == (True, True, False)
    assert (strict.correct, strict.lenient, strict.strict) == (False, True, False)
    assert (lenient.reward, strict.reward) == (1, -1)
    assert lenient.extracted.value == "28"
    assert strict.extracted.value is None
    assert not lenient.tagged
    assert grade(ask("28"), "[ANSWER] 5 [ANSWER] 6").tagged  # used, if not well


def test_explanation_says_what_was_read_by_which_rule_and_why() -> None:
    said = explain(ask("28"), "6+9+13 = 28\n[ANSWER] 27 [ANSWER] 28")
    for part in ("gold      28", "lenient   right: 28", "strict    wrong: no answer", "rule tag"):
        assert part in said
    assert "ambiguous" in said
    assert "2 [ANSWER] tags" in said
    assert all(name in said for name in ALL)
