"""Reward terms: values computed by hand, then claims that hold for all answers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glasshouse.errors import ConfigError, RewardError
from glasshouse.rollout.explain import explain_grade
from glasshouse.rollout.grading import grade
from glasshouse.rollout.terms import (
    MAX_PARTIAL_REWARD,
    RewardInputs,
    combine_rewards,
    reward,
)
from glasshouse.types import AnswerKind, Problem

CORRECTNESS_TERMS = ("exact", "closeness", "alignment")
ALL_TERMS = (*CORRECTNESS_TERMS, "format")
GOLDS = st.integers(-(10**9), 10**9)
WEIGHTS = st.dictionaries(st.sampled_from(ALL_TERMS), st.floats(0.01, 100), min_size=1)


def make_problem(gold: str, kind: str = "number", decimals: int = 0) -> Problem:
    gold_answer = {"gold_answer": gold, "answer_kind": AnswerKind(kind), "decimals": decimals}
    return Problem(task="sum_digits", key="the-key", question="q", **gold_answer)


def reward_of(name: str, gold: str, answer: str, kind: str = "number", decimals: int = 0) -> float:
    text = f"[ANSWER] {answer}" if answer else "I do not know"
    return grade(make_problem(gold, kind, decimals), text, terms={name: 1.0}, strict=True).reward


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
    assert reward_of(name, gold, answer) == pytest.approx(value, abs=1e-12)


def test_sequences_texts_and_decimals_by_hand() -> None:
    for name, gold, answer, kind, share in (
        ("alignment", "3, 7, 8", "3, 7, 9", "sequence", 2 / 3),
        ("alignment", "3, 7", "3, 7, 8", "sequence", 1 / 6),
        ("closeness", "10, 10", "10, 11", "sequence", 0.75),
        ("closeness", "10, 10", "10", "sequence", 0.5),
        ("alignment", "new york", "old york", "text", 0.5),
        ("closeness", "new york", "old york", "text", 0),
        ("alignment", "4", "3." + "0" * 30, "number", 0),  # trailing zeros earn nothing
        ("alignment", "40", "41.00", "number", 0.5),
    ):
        assert reward_of(name, gold, answer, kind) == pytest.approx(-1 + 1.8 * share), answer
    assert reward_of("alignment", "3.33", "3.3", decimals=2) == pytest.approx(-1 + 1.8 * 2 / 3)


@pytest.mark.parametrize("name", ALL_TERMS)
def test_no_answer_and_one_that_the_strict_parser_rejects_earn_the_minimum(name: str) -> None:
    rejected = ("[ANSWER] 27 or 28", "The answer is 27", "[ANSWER] 27 [ANSWER] 29")
    for text, strict in [("no idea", False), ("", False), *((text, True) for text in rejected)]:
        assert grade(make_problem("28"), text, terms={name: 1}, strict=strict).reward == -1


@given(GOLDS, GOLDS, st.sampled_from(CORRECTNESS_TERMS))
@example(30, 130, "alignment")
@example(10**9, 10**9 - 1, "closeness")
def test_wrong_answer_earns_less_than_a_correct_one(gold: int, answer: int, name: str) -> None:
    value = reward_of(name, str(gold), str(answer))
    assert value == 1 if gold == answer else -1 <= value <= MAX_PARTIAL_REWARD < 1


@given(GOLDS, st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from([1, -1]))
def test_closeness_falls_with_the_distance(gold: int, near: int, more: int, side: int) -> None:
    nearer = reward_of("closeness", str(gold), str(gold + side * near))
    farther = reward_of("closeness", str(gold), str(gold + side * (near + more)))
    assert nearer > farther


TEXTS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "so ", "<think>1</think>", "[ANSWER] 3\n"]),
    st.sampled_from(["[ANSWER] ", "", "the answer is "]),
    st.sampled_from(["28", "28.0", "27", "128", "29", "28 or 27", "none", "0"]),
)


@given(WEIGHTS, st.sampled_from(["weights", "min"]), TEXTS, TEXTS, st.booleans())
@example({"exact": 1, "format": 2}, "weights", "28", "[ANSWER] 27", False)
@example({"closeness": 1, "format": 0.2}, "weights", "28", "[ANSWER] 27", False)
@example({"closeness": 1, "alignment": 1}, "min", "28", "[ANSWER] 27", False)
def test_no_combination_lets_a_wrong_answer_reach_a_correct_one(
    weights: dict[str, float], combine: str, text_a: str, text_b: str, strict: bool
) -> None:
    a, b = (
        grade(make_problem("28"), text, terms=weights, combine=combine, strict=strict)
        for text in (text_a, text_b)
    )
    assert -1 <= a.reward <= 1
    only_form_counts = set(weights) == {"format"} or (
        combine == "min" and "format" in weights and not strict
    )
    if a.correct and not b.correct and not only_form_counts:
        assert a.reward > b.reward


@given(st.floats(-1, 0.8), st.floats(-1, 0.8), st.floats(0.1, 10))
def test_combining_keeps_the_order_of_wrong_answers(a: float, b: float, weight: float) -> None:
    low, high = sorted((a, b))
    weights = {"closeness": 1.0, "format": weight}
    totals = [
        combine_rewards({"closeness": c, "format": 1}, weights, correct=False) for c in (low, high)
    ]
    assert totals[0] < totals[1] or high - low < 1e-12


def test_combinations_by_hand() -> None:
    parts = {"exact": -1.0, "closeness": 0.5}
    assert combine_rewards(parts, {"exact": 1, "closeness": 3}) == pytest.approx(0.125)
    assert combine_rewards(parts, {"exact": 1, "closeness": 3}, "min") == -1
    assert combine_rewards(parts, {"exact": 0, "closeness": 3}, "min") == 0.5
    assert combine_rewards(
        {"exact": -1, "format": 1}, {"exact": 1, "format": 0.2}
    ) == pytest.approx(-2 / 3)
    scaled = combine_rewards({"exact": -1, "format": 1}, {"exact": 1, "format": 2}, correct=False)
    assert scaled == pytest.approx(-0.4)  # a correct answer without its tag earns -1/3


@pytest.mark.parametrize(
    ("terms", "combine", "message"),
    [
        ({"exactt": 1}, "weights", '"exactt".*"exact"'),
        ({"exact": 1}, "mean", 'reward.combine.*"mean"'),
        ({"exact": -1}, "weights", "reward.terms.exact is -1"),
        ({"exact": math.nan}, "weights", "reward.terms.exact is nan"),
        ({"exact": 0}, "weights", "reward.terms"),
        ({}, "weights", "reward.terms"),
    ],
)
def test_invalid_terms_are_named(terms: dict, combine: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grade(make_problem("28"), "28", terms=terms, combine=combine)


@pytest.fixture
def broken() -> Iterator[None]:
    """A user-defined reward term that depends on the completion."""

    @reward("broken")
    def broken(inputs: RewardInputs) -> float:
        if "raise" in inputs.text:
            raise KeyError("lost")
        return {"nan": math.nan, "big": 1.5, "text": "a"}.get(inputs.text, 0.5)  # type: ignore[return-value]

    yield
    del reward.parts["broken"]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("text", ["raise", "nan", "big", "text", "raise \ud800" + "x" * 10_000])
def test_failing_reward_term_raises_with_the_completion(text: str) -> None:
    with pytest.raises(RewardError) as caught:
        grade(make_problem("28"), text, terms={"exact": 1, "broken": 1})
    message = str(caught.value)
    assert '"broken"' in message
    assert "'the-key'" in message
    assert text[:5] in message
    assert len(message) < 1000
    message.encode()  # can be printed


@pytest.mark.usefixtures("broken")
def test_user_defined_reward_term_is_weighted_like_any_other() -> None:
    result = grade(make_problem("28"), "[ANSWER] 28", terms={"exact": 1, "broken": 1})
    assert result.terms == {"exact": 1, "broken": 0.5}
    assert result.reward == 0.75


def test_gold_answer_that_cannot_be_parsed_raises() -> None:
    with pytest.raises(RewardError, match=r"'the-key'.*'3/4'"):
        grade(make_problem("3/4"), "[ANSWER] 5")


def test_grade_reports_both_parsers_and_uses_the_configured_one() -> None:
    text = "The answer is 28"
    lenient, strict = grade(make_problem("28"), text), grade(make_problem("28"), text, strict=True)
    assert (lenient.correct, lenient.lenient, lenient.strict) == (True, True, False)
    assert (strict.correct, strict.lenient, strict.strict) == (False, True, False)
    assert (lenient.reward, strict.reward) == (1, -1)
    assert lenient.extracted.model_answer == "28"
    assert strict.extracted.model_answer is None
    assert not lenient.has_answer_tag
    assert grade(make_problem("28"), "[ANSWER] 5 [ANSWER] 6").has_answer_tag  # a tag, if ambiguous


def test_explanation_names_the_answer_the_rule_and_the_reason() -> None:
    explanation = explain_grade("6+9+13 = 28\n[ANSWER] 27 [ANSWER] 28", 28)
    for part in ("correct: 28", "wrong: no answer", "rule tag", "ambiguous", *ALL_TERMS):
        assert part in explanation
