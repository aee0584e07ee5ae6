"""Grades a completion.

Both parsers are always applied, so that an evaluation can report both; `strict` chooses the one that
the reward terms use. A reward term that fails stops the run with the completion that caused it:
turning the failure into a zero would train the policy on a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from glasshouse.errors import RewardError
from glasshouse.rollout.terms import (
    RewardInputs,
    combine_rewards,
    reward,
    validate_reward_terms,
)
from glasshouse.tasks.answers import answers_match, extract_answer_to
from glasshouse.types import Extracted, ExtractionRule, Grade, Problem

DEFAULT_TERMS: Mapping[str, float] = MappingProxyType({"exact": 1.0})


def grade(
    problem: Problem,
    text: str,
    *,
    terms: Mapping[str, float] = DEFAULT_TERMS,
    combine: str = "weights",
    strict: bool = False,
) -> Grade:
    """Grades a completion. `terms` maps the names of reward terms to their weights.

    Example: `grade(problem, "[ANSWER] 28", terms={"exact": 1, "format": 0.2}).reward`
    """
    validate_reward_terms(terms, combine)
    lenient_answer = extract_answer_to(problem, text)
    strict_answer = extract_answer_to(problem, text, strict=True)
    lenient_correct = is_correct(problem, text, lenient_answer)
    strict_correct = is_correct(problem, text, strict_answer)
    has_tag = lenient_answer.rule is ExtractionRule.TAG and lenient_answer.model_answer is not None
    inputs = RewardInputs(
        problem=problem,
        text=text,
        extracted=strict_answer if strict else lenient_answer,
        correct=strict_correct if strict else lenient_correct,
        has_answer_tag=has_tag,
    )
    values = {name: _compute_term(name, inputs) for name in terms}
    return Grade(
        reward=combine_rewards(values, terms, combine, correct=inputs.correct),
        terms=values,
        correct=inputs.correct,
        lenient=lenient_correct,
        strict=strict_correct,
        has_answer_tag=has_tag,
        extracted=inputs.extracted,
    )


def is_correct(problem: Problem, text: str, answer: Extracted) -> bool:
    """Is this the gold answer? A gold answer that cannot be parsed stops the run."""
    try:
        return answers_match(
            answer.model_answer, problem.gold_answer, problem.answer_kind, problem.decimals
        )
    except ValueError as error:
        raise RewardError(
            f"The problem {problem.key!r} of {problem.task} cannot be graded: {error} "
            f"Fix the gold answer in the task. The completion was {_excerpt(text)}."
        ) from error


def _compute_term(name: str, inputs: RewardInputs) -> float:
    where = f"on the problem {inputs.problem.key!r} of {inputs.problem.task}"
    completion = f"The completion was {_excerpt(inputs.text)}."
    try:
        value = float(reward.get(name)(inputs))
    except Exception as error:
        raise RewardError(
            f'The reward term "{name}" failed {where} with {type(error).__name__}: {error}. {completion}'
        ) from error
    if not -1 <= value <= 1:  # false for NaN too
        raise RewardError(
            f'The reward term "{name}" returned {value} {where}; it must be in [-1, 1]. {completion}'
        )
    return value


def _excerpt(text: str, max_chars: int = 400) -> str:
    """The beginning and end of a completion, short enough for an error message."""
    if len(text) <= max_chars:
        return ascii(text)
    half = max_chars // 2
    return f"{text[:half]!a} … {text[-half:]!a} ({len(text)} characters)"
