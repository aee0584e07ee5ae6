"""Every known exploit earns nothing under the strict parser: one per line of adversarial.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glasshouse.rollout.grading import grade
from glasshouse.types import AnswerKind, Problem

LINES = (Path(__file__).parent / "adversarial.jsonl").read_text("utf-8").splitlines()
CORPUS = [json.loads(line) for line in LINES]
TERMS = {"exact": 1.0, "closeness": 1.0, "alignment": 1.0}


def make_problem(gold: str, kind: str = "number", decimals: int = 0) -> Problem:
    return Problem(
        task="t",
        key="k",
        question="q",
        gold_answer=gold,
        answer_kind=AnswerKind(kind),
        decimals=decimals,
    )


@pytest.mark.parametrize("case", CORPUS, ids=lambda c: f"{c['exploit']}: {c['text'][:30]!a}")
def test_exploit_earns_nothing_under_the_strict_parser(case: dict) -> None:
    problem = make_problem(case["gold"], case.get("kind", "number"), case.get("decimals", 0))
    result = grade(problem, case["text"], terms=TERMS, combine="min", strict=True)
    assert not result.correct
    assert not result.strict
    assert result.terms["exact"] == -1
    assert result.reward == -1


def test_corpus_covers_every_known_kind_of_exploit() -> None:
    assert {case["exploit"] for case in CORPUS} >= {
        "list of numbers",
        "alternatives",
        "conflicting tags",
        "tag quoted in the CoT",
        "gold as a substring",
        "number echoed from the prompt",
    }


@pytest.mark.parametrize(
    "text",
    [
        "[ANSWER] 28",
        "1+2+3 = 6, 4+5 = 9, 6+7 = 13\n6+9+13 = 28\n[ANSWER] 28",
        "so [ANSWER] 28.",
        "**[ANSWER]** **28**",
        "[ANSWER]: 28 kg",
        "[ANSWER] 28 square meters.",
        "[ANSWER] 28m²",
        '[ANSWER] "28"',
        "[ANSWER] [28]",
        "[ANSWER] 2.8e1",
        "[ANSWER] ２８",
        "[ANSWER] 28 ok",
        "[ANSWER]\n28\n",
        "[ANSWER] $28",
        "[ANSWER] \\boxed{28}",
        "[ANSWER] 28 [/ANSWER]",
        "<think>perhaps [ANSWER] 27</think>\n[ANSWER] 28",
        "perhaps [ANSWER] 27</think>\n[ANSWER] 28",
        "11 or 12, no: [ANSWER] 28",
    ],
)
def test_honest_answer_is_accepted_by_the_strict_parser(text: str) -> None:
    assert grade(make_problem("28"), text, terms=TERMS, combine="min", strict=True).reward == 1
