"""10,000 generated completions with a known meaning: strict rewards nothing that is not the answer."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.tasks.answers.grammar import GROUPS, Case, Meaning, generate_case

from glasshouse.rollout.grading import grade
from glasshouse.types import Problem

COUNT = 10_000
TERMS = {"closeness": 1.0, "alignment": 1.0}


@pytest.fixture(scope="module")
def grades() -> list[tuple[Case, bool, bool]]:
    """Each case with whether the lenient and the strict parser extract the gold answer."""
    results = []
    for seed in range(COUNT):
        case = generate_case(random.Random(seed))
        problem = Problem(task="t", key="k", question="q", gold_answer=case.gold)
        result = grade(problem, case.text, terms=TERMS)
        results.append((case, result.lenient, result.strict))
    return results


def test_strict_parser_gives_no_unearned_reward(grades: list[tuple[Case, bool, bool]]) -> None:
    unearned = [case for case, _, strict in grades if strict and case.meaning is not Meaning.EQUAL]
    assert not unearned


def test_every_class_is_generated_and_plain_answers_are_accepted(
    grades: list[tuple[Case, bool, bool]],
) -> None:
    assert set(Counter(case.group for case, _, _ in grades)) == set(GROUPS)
    for parser, least in ((1, 0.95), (2, 0.85)):
        accepted = [
            row[parser]
            for row in grades
            if row[0].group in ("plain", "unit") and "[ANSWER]" in row[0].text
        ]
        assert sum(accepted) / len(accepted) > least


def test_lenient_parser_refuses_most_other_values(grades: list[tuple[Case, bool, bool]]) -> None:
    other = [lenient for case, lenient, _ in grades if case.meaning is Meaning.DIFFERENT]
    assert sum(other) / len(other) < 0.15
