"""Grade a text as training does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.rollout import grading
from glasshouse.rollout.grading import DEFAULT_TERMS
from glasshouse.tasks.base import make_task
from glasshouse.types import Grade, Problem


def grade(
    text: str,
    answer: str | int | float,
    *,
    task: str = "sum_digits",
    decimals: int = 0,
    terms: Mapping[str, float] = DEFAULT_TERMS,
    strict: bool = False,
) -> Grade:
    """Grade a completion against the correct answer. `task` decides how an answer is parsed.

    Example: `glasshouse.grade("so the answer is 28.", 28).correct` is True.
    """
    return grading.grade(_make_problem(answer, task, decimals), text, terms=terms, strict=strict)


def explain_grade(
    text: str, answer: str | int | float, *, task: str = "sum_digits", decimals: int = 0
) -> str:
    """What both parsers extract, by which rule and why, and the value of every reward term."""
    return grading.explain_grade(_make_problem(answer, task, decimals), text)


def _make_problem(answer: Any, task: str, decimals: int) -> Problem:
    kind = make_task(task).kind
    return Problem(
        task=task,
        key="given",
        question="",
        gold_answer=str(answer),
        answer_kind=kind,
        decimals=decimals,
    )
