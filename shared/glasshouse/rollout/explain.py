"""Grade a text as training does, and say why it earns what it earns."""

from __future__ import annotations

from collections.abc import Mapping

from glasshouse.rollout import grading
from glasshouse.rollout.grading import DEFAULT_TERMS
from glasshouse.rollout.terms import reward
from glasshouse.tasks.answers import extract_answer_to
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
    problem = _make_problem(answer, task, decimals)
    precision = f" to {decimals} decimals" if decimals else ""
    lines = [f"gold      {problem.gold_answer} ({problem.answer_kind.value}{precision})"]
    values = {}
    for parser, strict in (("lenient", False), ("strict", True)):
        found = extract_answer_to(problem, text, strict=strict)
        verdict = "correct" if grading.is_correct(problem, text, found) else "wrong"
        value = "no answer" if found.model_answer is None else found.model_answer
        ambiguous = ", ambiguous" if found.ambiguous else ""
        lines.append(f"{parser:<9} {verdict}: {value}")
        lines.append(f"          rule {found.rule.value}{ambiguous}: {found.reason}")
        terms = dict.fromkeys(reward, 1.0)
        values[parser] = grading.grade(problem, text, terms=terms, strict=strict).terms
    lines.append(f"rewards   {'':<12}{'lenient':>8}{'strict':>8}")
    for name, lenient in values["lenient"].items():
        lines.append(f"          {name:<12}{lenient:>8.2f}{values['strict'][name]:>8.2f}")
    return "\n".join(lines)


def _make_problem(answer: str | int | float, task: str, decimals: int) -> Problem:
    return Problem(
        task=task,
        key="given",
        question="",
        gold_answer=str(answer),
        answer_kind=make_task(task).kind,
        decimals=decimals,
    )
