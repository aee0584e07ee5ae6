"""Grading: a completion in, its verdict out.

Both readings are always made, so that an evaluation can report both; `strict` chooses the one that
the rewards see. A reward that fails stops the run with the completion that caused it: a failure
turned into a zero would train the policy on a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from glasshouse.answers.extraction import equal, extract, split
from glasshouse.errors import RewardError
from glasshouse.rewards.terms import REWARDS, RewardInputs, check, combine, find
from glasshouse.types import Extracted, Grade, Problem, Rule

EXACT: Mapping[str, float] = MappingProxyType({"exact": 1.0})
"""The second seed's reward, and the default."""


def grade(
    problem: Problem,
    text: str,
    *,
    terms: Mapping[str, float] = EXACT,
    how: str = "weights",
    strict: bool = False,
) -> Grade:
    """The verdict on a completion. `terms` are rewards by name with their weights.

    Example: `grade(problem, "[ANSWER] 28", terms={"exact": 1, "format": 0.2}).reward`
    """
    check(terms, how)
    readings = {mode: extract(text, problem.kind, strict=mode) for mode in (False, True)}
    right = {mode: _right(problem, text, readings[mode]) for mode in (False, True)}
    tagged = readings[False].rule is Rule.TAG and readings[False].value is not None
    given = RewardInputs(
        problem=problem,
        text=text,
        extracted=readings[strict],
        correct=right[strict],
        tagged=tagged,
    )
    parts = {name: _evaluate(name, given) for name in terms}
    return Grade(
        reward=combine(parts, terms, how, correct=right[strict]),
        parts=parts,
        correct=right[strict],
        lenient=right[False],
        strict=right[True],
        tagged=tagged,
        extracted=readings[strict],
    )


def explain(problem: Problem, text: str) -> str:
    """Both readings of a completion, which rule fired and why, and every reward: for people.

    Example: `glasshouse grade --task sum_digits ...` prints this.
    """
    asked = f" to {problem.decimals} decimals" if problem.decimals else ""
    lines = [f"gold      {problem.answer} ({problem.kind.value}{asked})"]
    for strict in (False, True):
        read = extract(text, problem.kind, strict=strict)
        verdict = "right" if _right(problem, text, read) else "wrong"
        lines += [
            f"{'strict' if strict else 'lenient':<9} "
            + (f"{verdict}: {read.value}" if read.value is not None else "wrong: no answer"),
            f"          rule {read.rule.value}{', ambiguous' if read.ambiguous else ''}"
            + (f", characters {read.span[0]} to {read.span[1]}" if read.span else ""),
            f"          {read.reason}",
        ]
    parts = split(text)
    lines.append(
        f"sections  {len(parts.cot)} characters of reasoning, {len(parts.answer)} of answer"
    )
    terms = dict.fromkeys(REWARDS, 1.0)
    loose, tight = (grade(problem, text, terms=terms, strict=mode).parts for mode in (False, True))
    lines.append(f"rewards   {'':<12}{'lenient':>8}{'strict':>8}")
    lines += [f"          {name:<12}{loose[name]:>8.2f}{tight[name]:>8.2f}" for name in terms]
    return "\n".join(lines)


def _right(problem: Problem, text: str, read: Extracted) -> bool:
    try:
        return equal(read.value, problem.answer, problem.kind, problem.decimals)
    except ValueError as error:
        raise RewardError(
            f"The problem {problem.key!r} of {problem.task} cannot be graded: {error} "
            f"Mend the task's gold answer. The completion was {_shown(text)}."
        ) from error


def _evaluate(name: str, given: RewardInputs) -> float:
    where = f"on the problem {given.problem.key!r} of {given.problem.task}"
    shown = f"The completion was {_shown(given.text)}."
    try:
        value = float(find(name)(given))
    except Exception as error:
        raise RewardError(
            f'The reward "{name}" failed {where} with {type(error).__name__}: {error}. {shown}'
        ) from error
    if not -1 <= value <= 1:  # false for NaN too
        raise RewardError(
            f'The reward "{name}" gave {value} {where}; it must lie in -1 to 1. {shown}'
        )
    return value


def _shown(text: str, most: int = 400) -> str:
    """A completion short enough for a sentence: its beginning and its end."""
    if len(text) <= most:
        return ascii(text)
    half = most // 2
    return f"{text[:half]!a} … {text[-half:]!a} ({len(text)} characters)"
