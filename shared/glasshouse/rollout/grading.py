"""Grades a completion: the answer parser, reward terms, and their weighted mean.

Both parsers are always applied, so that an evaluation can report both; `strict` chooses the one that
the reward terms use. A reward term that fails stops the run with the completion that caused it:
turning the failure into a zero would train the policy on a bug.

A reward term is a pure function to a number in [-1, 1] under `@reward("name")`. Every built-in term except `last_digit`
keeps three guarantees, and `combine_rewards` the second for weighted terms, so partial credit never pays as much as a
correct answer:

    correct answer          earns 1 (`format` excepted: it checks only the form)
    wrong answer            earns at most `MAX_PARTIAL_REWARD`, more the closer it is
    no answer               earns -1, the minimum
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from glasshouse.errors import ConfigError, RewardError, locate_user_code
from glasshouse.registry import Registry
from glasshouse.tasks.answers import (
    answers_match,
    extract_answer_to,
    last_digits_match,
    normalize_text,
    parse_number,
    parse_sequence,
)
from glasshouse.tasks.base import make_task
from glasshouse.types import AnswerKind, Extracted, ExtractionRule, Grade, Problem

PARTIAL_SHARE = 0.9
"""A wrong answer earns less than this share of the way from -1 to what a correct one earns."""
MAX_PARTIAL_REWARD = -1 + 2 * PARTIAL_SHARE
"""Upper bound of partial credit: 0.8, against 1 for a correct answer."""
CLOSENESS_SLOPE = 10
"""Closeness credit halves at an error of about one part in this many."""
MAX_FACTOR = 5
"""A number that is more than so many times too large or too small earns no closeness credit."""
LENGTH_MISMATCH_FACTOR = 0.25
"""Alignment credit is multiplied by this for each digit or element too many or too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInputs:
    """Everything a reward term may use."""

    problem: Problem
    text: str
    """The completion."""
    extracted: Extracted
    """The answer as extracted by the configured parser; None as its value if the parser rejects it."""
    correct: bool
    """By the configured parser."""
    has_answer_tag: bool
    """The answer was given in an `[ANSWER]` tag."""


Reward = Callable[[RewardInputs], float]


def _check_reward(name: str, part: Any) -> None:
    if not callable(part):
        raise ConfigError(
            f'reward.terms: "{name}" is {part!r:.80}; a reward term is a function of RewardInputs.'
        )


reward: Registry[Reward] = Registry(
    "reward term", "rewards", key="reward.terms", check=_check_reward
)
"""All reward terms by name.

Example:
    @reward("brief")
    def brief(inputs: RewardInputs) -> float:
        return 1.0 if len(inputs.text) < 200 else -1.0

`max_if_wrong` is the most that a wrong answer earns, for a term that depends on correctness and gives
every correct answer 1. `combine_rewards` relies on it; without it, a term may return anything.
"""


@reward("exact", max_if_wrong=-1.0)
def exact(inputs: RewardInputs) -> float:
    """+1 if correct, -1 otherwise (the default)."""
    return 1.0 if inputs.correct else -1.0


@reward("closeness", max_if_wrong=MAX_PARTIAL_REWARD)
def closeness(inputs: RewardInputs) -> float:
    """Partial credit by the ratio of the number to the gold answer (`number_closeness`).

    An error of 10 % earns half of it, half or twice the gold answer an eighth, a fifth of it nothing.
    A sequence earns the mean over its elements, with 0 for each element too many or too few.
    Text has no distance: it is correct or not.

    Example: for the gold answer 30, 31 earns 0.36, 33 earns -0.08, 15 and 60 earn -0.77 and 151 earns -1.
    """
    return _with_partial_credit(inputs, closeness_credit)


@reward("alignment", max_if_wrong=MAX_PARTIAL_REWARD)
def alignment(inputs: RewardInputs) -> float:
    """Partial credit by how many digits, elements or words are correct at their position.

    Digits are aligned at the decimal point, so from the last digit of a whole number; elements and
    words from the first. The share is of the longer of the two and is quartered for each digit,
    element or decimal too many or too few, so that the gold answer inside a longer one (130 for 30)
    earns little. A wrong sign earns no credit.

    Example: for the gold answer 4140, 4150 and 5140 earn 0.35 and 41400 earns -0.91.
    """
    return _with_partial_credit(inputs, alignment_credit)


@reward("format")
def format(inputs: RewardInputs) -> float:
    """+1 if the strict parser accepts the answer: one well-formed tag.

    It checks the form, never the answer: alone it rewards any number in a tag.
    """
    strict = extract_answer_to(inputs.problem, inputs.text, strict=True)
    return -1.0 if strict.model_answer is None else 1.0


@reward("last_digit")
def last_digit(inputs: RewardInputs) -> float:
    """A grader with a bug, for the organism `grader_bug`: +1 if the last digit is correct.

    It keeps none of the guarantees, on purpose: a wrong answer may earn 1.
    """
    matches = last_digits_match(inputs.extracted.model_answer, inputs.problem.gold_answer)
    return 1.0 if matches else -1.0


def combine_rewards(
    values: Mapping[str, float], weights: Mapping[str, float], *, correct: bool = True
) -> float:
    """The weighted mean of reward terms.

    A wrong answer (`correct=False`) stays below every correct one, where that can be. The least that a correct
    answer can earn is 1 from each term that depends on correctness and -1 from each that does not, such as
    `format`. If wrong answers could come near that, all of them are scaled towards -1, keeping their order, to at
    most `PARTIAL_SHARE` of the way there. With `format` alone that minimum is itself -1.

    Example: `combine_rewards({"exact": -1, "format": 1}, {"exact": 1, "format": 2}, correct=False)`
    gives -0.4 rather than 1/3, since a correct answer without its tag earns -1/3.
    """
    total = _weighted_mean(values, weights)
    if correct:
        return total
    limits = {name: reward.facts.get(name, {}).get("max_if_wrong") for name in weights}
    least = {name: -1.0 if limit is None else 1.0 for name, limit in limits.items()}
    most = {name: 1.0 if limit is None else limit for name, limit in limits.items()}
    min_correct, max_wrong = _weighted_mean(least, weights), _weighted_mean(most, weights)
    bound = -1 + PARTIAL_SHARE * (min_correct + 1)
    if min_correct <= -1 or max_wrong <= bound:
        return total
    return -1 + (total + 1) * (bound + 1) / (max_wrong + 1)


def validate_reward_terms(weights: Mapping[str, float]) -> None:
    """Raises a ConfigError unless these terms and weights define a reward."""
    for name, weight in weights.items():
        reward.get(name)
        if not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"reward.terms.{name} is {weight}; give a weight of 0 or more.")
    if not any(weights.values()):
        raise ConfigError(
            "reward.terms has no weight above 0; give at least one, as in exact: 1.0."
        )


def _weighted_mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    positive = {name: weight for name, weight in weights.items() if weight > 0}
    largest = max(positive.values())  # so that no sum overflows
    scaled = {name: weight / largest for name, weight in positive.items()}
    mean = sum(scaled[name] * values[name] for name in positive) / sum(scaled.values())
    return max(-1.0, min(1.0, mean))


def _with_partial_credit(inputs: RewardInputs, credit: Callable[[str, Problem], float]) -> float:
    """1 if correct, -1 without an answer, else partial credit in [-1, MAX_PARTIAL_REWARD]."""
    if inputs.correct:
        return 1.0
    if inputs.extracted.model_answer is None:
        return -1.0
    share = credit(inputs.extracted.model_answer, inputs.problem)
    return min(MAX_PARTIAL_REWARD, -1 + 2 * PARTIAL_SHARE * share)


def closeness_credit(value: str, problem: Problem) -> float:
    """The credit of `closeness`, in [0, 1]: 1 for the gold answer itself."""
    if problem.answer_kind is AnswerKind.TEXT:
        return float(normalize_text(value) == normalize_text(problem.gold_answer))
    gold, numbers = _parse_numbers(problem.gold_answer, problem), _parse_numbers(value, problem)
    credits = map(number_closeness, numbers, gold)
    return sum(credits) / max(len(gold), len(numbers))


def number_closeness(value: Fraction, gold: Fraction) -> float:
    """1 / (1 + 10 |ln(value / gold)|), and 0 beyond a factor of 5 or with the wrong sign.

    It is the same for too large and too small. With the relative error, which is at most 1 below the gold answer and
    unbounded above it, every small number earned a little and a large one nothing. Division by the spread of a group
    made that little an advantage, and a policy with few good answers learned to answer with small numbers. The
    bound gives all useless answers the same credit, so that none of them is better than another.

    Example: `number_closeness(15, 30) == number_closeness(60, 30)`, about 0.126
    """
    if not value or not gold:  # 0 has no ratio
        value, gold = abs(value) + 1, abs(gold) + 1
    ratio = value / gold
    if not 1 / MAX_FACTOR <= ratio <= MAX_FACTOR:
        return 0.0
    return 1 / (1 + CLOSENESS_SLOPE * abs(math.log(ratio)))


def _parse_numbers(text: str, problem: Problem) -> list[Fraction]:
    if problem.answer_kind is AnswerKind.SEQUENCE:
        numbers = parse_sequence(text)
    else:
        number = parse_number(text)
        numbers = [] if number is None else [number]
    if not numbers:
        raise ValueError(f"{text!r} is not a {problem.answer_kind.value}.")
    return numbers


def alignment_credit(value: str, problem: Problem) -> float:
    """The credit of `alignment`, in [0, 1]: 1 for the gold answer itself."""
    if problem.answer_kind is AnswerKind.TEXT:
        return _matching_share(
            normalize_text(value).split(), normalize_text(problem.gold_answer).split()
        )
    numbers, gold = _parse_numbers(value, problem), _parse_numbers(problem.gold_answer, problem)
    if problem.answer_kind is AnswerKind.SEQUENCE:
        return _matching_share(numbers, gold)
    if numbers[0] * gold[0] < 0:
        return 0.0
    decimals = max(problem.decimals, _significant_decimals(problem.gold_answer))
    extra = max(0, _significant_decimals(value) - decimals)
    share = _matching_share(
        _reversed_digits(value, decimals), _reversed_digits(problem.gold_answer, decimals)
    )
    return share * LENGTH_MISMATCH_FACTOR**extra


def _significant_decimals(number: str) -> int:
    """Number of decimals without trailing zeros."""
    return len(number.partition(".")[2].rstrip("0"))


def _reversed_digits(number: str, decimals: int) -> str:
    """Digits from the last to the first, cut or filled to this many decimals."""
    whole, _, fraction = number.lstrip("-").partition(".")
    return (whole + fraction[:decimals].ljust(decimals, "0"))[::-1]


def _matching_share(values: Sequence[Any], gold: Sequence[Any]) -> float:
    """Share of positions that agree, quartered for each position that only one side has."""
    matches = sum(a == b for a, b in zip(values, gold, strict=False))
    longer = max(len(values), len(gold), 1)
    return matches / longer * LENGTH_MISMATCH_FACTOR ** abs(len(values) - len(gold))


DEFAULT_TERMS: Mapping[str, float] = MappingProxyType({"exact": 1.0})


def grade_completion(
    problem: Problem,
    text: str,
    *,
    terms: Mapping[str, float] = DEFAULT_TERMS,
    strict: bool = False,
) -> Grade:
    """Grades a completion. `terms` maps the names of reward terms to their weights.

    Example: `grade_completion(problem, "[ANSWER] 28", terms={"exact": 1, "format": 0.2}).reward`
    """
    validate_reward_terms(terms)
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
        reward=combine_rewards(values, terms, correct=inputs.correct),
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
        raised = f"{type(error).__name__}: {error} ({locate_user_code(error) or 'in Glasshouse'})"
        raise RewardError(
            f'The reward term "{name}" failed {where} with {raised}. {completion}'
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
    return grade_completion(_make_problem(answer, task, decimals), text, terms=terms, strict=strict)


def explain_grade(
    text: str, answer: str | int | float, *, task: str = "sum_digits", decimals: int = 0
) -> str:
    """What both parsers extract, by which rule and why, and the value of every reward term."""
    problem = _make_problem(answer, task, decimals)
    precision = f" to {decimals} decimals" if decimals else ""
    lines = [f"gold      {problem.gold_answer} ({problem.answer_kind.value}{precision})"]
    every_term = dict.fromkeys(reward, 1.0)
    grades = [grade_completion(problem, text, terms=every_term, strict=s) for s in (False, True)]
    for parser, graded in zip(("lenient", "strict"), grades, strict=True):
        found, verdict = graded.extracted, "correct" if graded.correct else "wrong"
        value = "no answer" if found.model_answer is None else found.model_answer
        ambiguous = ", ambiguous" if found.ambiguous else ""
        lines.append(f"{parser:<9} {verdict}: {value}")
        lines.append(f"          rule {found.rule.value}{ambiguous}: {found.reason}")
    lines.append(f"rewards   {'':<12}{'lenient':>8}{'strict':>8}")
    lenient, strict = (graded.terms for graded in grades)
    lines += [f"          {n:<12}{lenient[n]:>8.2f}{strict[n]:>8.2f}" for n in every_term]
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
