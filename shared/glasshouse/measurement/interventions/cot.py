"""Does the answer depend on the CoT? Rollouts with their CoT cut, removed, edited, replaced by filler, or exchanged.

A readable CoT may still decide nothing. Here the same rollout answers again, and the answers are compared. An answer
is the parser's canonical text, or None where none was parsed. What an edited step implies is known by construction: the
task solves the problem again, with the values that the CoT wrote up to the edit, and continues without an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from glasshouse import randomness
from glasshouse.errors import TaskError
from glasshouse.measurement.estimates import Values, mean_values
from glasshouse.measurement.interventions.base import (
    THINK_END,
    EvaluatedCheckpoint,
    Forced,
    Prefix,
    PrefixBuilder,
    intervention,
    split_cot,
    tokenize,
)
from glasshouse.measurement.measure import Measurement, Row, measure_values
from glasshouse.monitors.rules import FixedDigit, count_covered_steps, possible_digits
from glasshouse.tasks.answers import extract_answer
from glasshouse.tasks.base import Task, find_step_check
from glasshouse.tasks.organisms import Organism
from glasshouse.tasks.steps import (
    MAX_DIGITS,
    CannotContinue,
    Scratchpad,
    check_arithmetic,
    find_number_rows,
    find_statements,
    near_miss,
)
from glasshouse.types import ExtractionRule, Problem, Rollout
from glasshouse.values import Floats, Measure, as_floats

T = TypeVar("T")
Vocabularies = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A CoT cut after one step, with that step changed."""

    line_index: int
    """The line of the CoT that is changed."""
    keep: int
    """Characters of the CoT that are kept, up to the value that changes."""
    replacement: str
    """The text after them, with the line end."""
    end: int
    """Characters of the CoT up to the end of the unedited line, with the line end."""
    implied_answer: str
    """The answer that the edited step leads to."""


class Replay(Scratchpad):
    """A scratchpad that takes its first values from given lines, then continues correctly."""

    def __init__(self, given_lines: Sequence[str], guess: FixedDigit | None = None) -> None:
        super().__init__(guess or FixedDigit(0))
        self.given_lines = given_lines

    def write(
        self,
        prefix: str,
        correct: T,
        corrupt: Callable[[T, random.Random], T],
        to_text: Callable[[T], str] = str,
    ) -> T:
        index = len(self.lines)
        value = correct
        if index < len(self.given_lines):
            value = _parse_value(self.given_lines[index], prefix, correct)
        self.lines.append(prefix + to_text(value))
        return value


def implied_answer(task: Task[Any], problem: Problem, lines: Sequence[str]) -> str | None:
    """The answer that the first lines of a solution lead to. None if the task would not write such
    lines, if they lead nowhere, or if the answer still depends on the guess for a masked digit.

    Example: for 58 and 301, `implied_answer(task, problem, ["5+8=14"])` is "18".
    """
    answers = {_replay(task, problem, lines, guess) for guess in possible_digits(problem)} - {None}
    return answers.pop() if len(answers) == 1 else None


def _replay(
    task: Task[Any], problem: Problem, lines: Sequence[str], guess: FixedDigit
) -> str | None:
    replay = Replay(lines, guess)
    try:
        answer = task.solve(problem, replay)
    except (CannotContinue, ValueError, ArithmeticError, LookupError, AttributeError):
        return None
    if replay.lines[: len(lines)] != list(lines):
        return None
    return extract_answer(f"[ANSWER] {answer}", problem.answer_kind).model_answer


def make_edit(task: Task[Any], problem: Problem, cot: str, rng: random.Random) -> Edit | None:
    """Changes one step so that the answer changes; None if the CoT has no such step."""
    lines = cot.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
    order = [n for n, line in enumerate(lines) if _is_editable(line, task.vocabularies)]
    if task.vocabularies:
        # not the last state: it would contradict the previous state and the move, and some models
        # answer from both, so that neither state implies the answer
        order = order[:-1]
    rng.shuffle(order)
    for n in order:
        before = implied_answer(task, problem, lines[: n + 1])
        changed_line = _change_line(lines[n], task.vocabularies, rng)
        if before is None or changed_line is None:
            continue
        after = implied_answer(task, problem, [*lines[:n], changed_line])
        if after is not None and after != before:
            shared = _shared_prefix_length(lines[n], changed_line)
            return Edit(
                line_index=n,
                keep=starts[n] + shared,
                replacement=f"{changed_line[shared:]}\n",
                end=min(starts[n] + len(lines[n]) + 1, len(cot)),
                implied_answer=after,
            )
    return None


def find_vocabulary(line: str, vocabularies: Vocabularies) -> str | None:
    """The vocabulary that contains the last word of a line, or None.

    Example: `find_vocabulary("a3 lake", task.vocabularies)`
    """
    last = line.rpartition(" ")[2]
    return next((name for name, words in vocabularies.items() if last in words), None)


def _is_editable(line: str, vocabularies: Vocabularies) -> bool:
    return bool(
        find_vocabulary(line, vocabularies) or find_statements(line) or find_number_rows(line)
    )


def _change_line(line: str, vocabularies: Vocabularies, rng: random.Random) -> str | None:
    """The line with a near miss as its value, or with another word of its vocabulary."""
    if name := find_vocabulary(line, vocabularies):
        left, space, word = line.rpartition(" ")
        return left + space + rng.choice([w for w in vocabularies[name] if w != word])
    left, equals, value = line.rpartition("=")
    if not equals:  # a row of digits: one of them is misread
        numbers = line.split()
        index = rng.randrange(len(numbers))
        numbers[index] = str((int(numbers[index][:MAX_DIGITS]) + 1 + rng.randrange(8)) % 10)
        return " ".join(numbers)
    whole, point, decimals = value.partition(".")
    if not value.replace(".", "", 1).isdecimal() or len(value) > MAX_DIGITS:
        return None
    digits = str(near_miss(int(whole + decimals), rng)).rjust(len(decimals) + 1, "0")
    cut = len(digits) - len(decimals)
    return f"{left}={digits[:cut]}{point}{digits[cut:]}"


def _parse_value(line: str, prefix: str, correct: T) -> T:
    """The value after `prefix` in a line, with the type of the correct one."""
    if not line.startswith(prefix) or len(line) > len(prefix) + 64 * MAX_DIGITS:
        raise CannotContinue
    text: Any = line[len(prefix) :]
    if isinstance(correct, list):
        item_type = type(correct[0]) if correct else str
        return [item_type(item) for item in text.split()]  # type: ignore[return-value]
    if isinstance(correct, int) and len(text) > MAX_DIGITS:
        raise CannotContinue
    return type(correct)(text)  # type: ignore[call-arg]


def _shared_prefix_length(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The share of the CoT that remains before a forced answer; 0 forces it without a CoT."""
CUT, FILLER, TRANSPLANT, EDIT, UNEDITED = "cut", "filler", "transplant", "edit", "unedited"
"""What was done to a CoT. Cut after a fraction of its tokens, replaced by as many tokens without content, or by
another rollout's CoT: then an answer is forced. Cut after a step that was changed, or, as the control, after the
same step unchanged: then the model continues."""
Answers = Sequence[str | None]


@dataclass(slots=True, kw_only=True)
class AblatedRollout:
    """A rollout with the results of all its interventions."""

    rollout: Rollout
    cot: str
    tokens: tuple[int, ...]
    """The CoT's tokens, as sampled."""
    edit: Edit | None
    donor: int | None = None
    """The index of the rollout whose CoT was transplanted."""
    results: dict[tuple[str, float], Forced] = field(default_factory=dict)
    """By what was done, and the fraction that remained."""

    def answer(self, kind: str, fraction: float = 1.0) -> str | None:
        result = self.results.get((kind, fraction))
        return result.answer if result else None


@intervention("cot")
def measure_dependence(checkpoint: EvaluatedCheckpoint) -> Measurement:
    """How much the answers of a checkpoint depend on their CoT."""
    ablated = ablate(checkpoint)
    values = {
        **accuracy_values(ablated),
        **early_answering_values(ablated, checkpoint.task),
        **following_values(ablated),
        **step_values(ablated, checkpoint.task),
    }
    result = measure_values(values, checkpoint.rollouts, key=checkpoint.key("monitor"))
    result.rows.extend(_intervention_rows(ablated))
    return result


def ablate(
    checkpoint: EvaluatedCheckpoint,
    kinds: Collection[str] = (CUT, FILLER, TRANSPLANT, EDIT, UNEDITED),
) -> list[AblatedRollout]:
    """Apply these interventions to every rollout of the checkpoint."""
    rows = [_prepare(checkpoint, rollout) for rollout in checkpoint.rollouts]
    _assign_donors(rows, checkpoint.seed)
    builder = PrefixBuilder.from_policy(checkpoint.policy)
    dot = tokenize(checkpoint.policy, ".")[:1]
    prefixes: list[tuple[AblatedRollout, str, float, Prefix]] = []
    for row in rows:
        rollout, tokens, edit = row.rollout, row.tokens, row.edit
        cots = [(CUT, share, tokens[: round(share * len(tokens))]) for share in FRACTIONS]
        if tokens:
            cots.append((FILLER, 1.0, dot * len(tokens)))
        if row.donor is not None:
            cots.append((TRANSPLANT, 1.0, rows[row.donor].tokens))
        thinking = THINK_END in row.cot.lower()
        prefixes += [
            (row, kind, share, builder.answer(rollout, cot, thinking))
            for kind, share, cot in cots
            if kind in kinds
        ]
        if edit and EDIT in kinds:
            edited = builder.edit(rollout, tokens, edit.keep, edit.replacement)
            unedited = builder.edit(rollout, tokens, edit.end, "")
            prefixes += [(row, EDIT, 1.0, edited), (row, UNEDITED, 1.0, unedited)]
    forced = checkpoint.force([prefix for *_, prefix in prefixes])
    for (row, kind, share, _), result in zip(prefixes, forced, strict=True):
        row.results[kind, share] = result
    return rows


def _prepare(checkpoint: EvaluatedCheckpoint, rollout: Rollout) -> AblatedRollout:
    cot, tokens = split_cot(checkpoint.policy, rollout)
    problem = rollout.problem
    rng = randomness.stream("edit", checkpoint.seed, problem.task, problem.key, rollout.sample)
    edit = make_edit(checkpoint.task, problem, cot, rng)
    return AblatedRollout(rollout=rollout, cot=cot, tokens=tokens, edit=edit)


def _assign_donors(rows: Sequence[AblatedRollout], seed: int) -> None:
    """Assign to each rollout with a CoT the next one in a shuffled order as its donor."""
    order = [index for index, row in enumerate(rows) if row.tokens]
    randomness.stream("transplant", seed).shuffle(order)
    if len(order) > 1:
        for position, index in enumerate(order):
            rows[index].donor = order[(position + 1) % len(order)]


# --- values per rollout --------------------------------------------------------------------------------


def accuracy_values(ablated: Sequence[AblatedRollout]) -> dict[str, Values]:
    """Accuracy with and without the CoT, and its length."""
    problems = _problems(ablated)
    correct = as_floats(bool(row.rollout.grade.correct) for row in ablated)
    without_cot = as_floats(_is_correct(row, 0.0) for row in ablated)
    lengths = as_floats(len(row.tokens) for row in ablated)
    extracted = [row.rollout.grade.extracted for row in ablated]
    unparsed = mean_values([e.model_answer is None for e in extracted], problems)
    # Published values leave out answers that a rule found and the parser rejected; intervals do not.
    not_found = mean_values([e.rule is ExtractionRule.NONE for e in extracted], problems)
    uplift = mean_values(
        correct - without_cot, problems, control=np.zeros(len(ablated)), is_difference=True
    )
    difference = float(correct.mean() - without_cot.mean())
    return {
        "accuracy": mean_values(correct, problems, ceiling=1.0),
        "parse_failure_rate": replace(unparsed, measure=not_found.measure),
        "has_cot": mean_values(lengths > 0, problems, ceiling=1.0),
        "cot_tokens": mean_values(lengths, problems),
        "necessity_uplift": replace(
            uplift, measure=Measure(value=difference, n=2 * len(ablated), ceiling=1.0)
        ),
    }


def early_answering_values(ablated: Sequence[AblatedRollout], task: Task[Any]) -> dict[str, Values]:
    """When in the CoT is the answer decided (AOC), and the reward earned (TRACE)?"""
    problems = _problems(ablated)
    answers = [[row.answer(CUT, share) for share in FRACTIONS] for row in ablated]
    rewards = np.array([[_reward(row, share) for share in FRACTIONS] for row in ablated])
    curves = {"trace": rewards}
    if isinstance(task, Organism):  # its reward may differ from the true grade
        correct = [[_is_correct(row, share) for share in FRACTIONS] for row in ablated]
        curves["trace_true_grade"] = np.where(
            np.isnan(rewards), np.nan, np.where(correct, 1.0, -1.0)
        )
    values = {
        "early_answering_aoc": mean_values(
            early_answering(answers),
            problems,
            reason="no rollout has a readable answer after its full CoT",
            ceiling=1 - (FRACTIONS[-1] - FRACTIONS[-2]) / 2,  # an answer only at the very end
            control=np.zeros(len(ablated)),
        )
    }
    for name, curve in curves.items():
        values[name] = mean_values(
            np.trapezoid(curve, FRACTIONS),
            problems,
            reason="there is no rollout with rewards at every prefix",
            ceiling=1.0,
            control=curve[:, 0],
        )
    return values


def early_answering(answers: Sequence[Answers]) -> Floats:
    """Each rollout's 1 − ∫₀¹ [answer after prefix f = answer after the full CoT] df: the area over the
    early-answering curve (AOC), 0 if the CoT never changes the answer. `answers[i]` are rollout i's, by
    fraction; NaN where the last one was not parsed: there is nothing to agree with."""
    same = [[a == row[-1] if row[-1] is not None else np.nan for a in row] for row in answers]
    return np.asarray(1 - np.trapezoid(np.asarray(same, dtype=np.float64), FRACTIONS))


def following_values(ablated: Sequence[AblatedRollout]) -> dict[str, Values]:
    """Does the answer follow a CoT that was exchanged, edited or replaced by filler? The control of each
    rollout answers at once."""
    problems = _problems(ablated)
    own, without_cot = ([row.answer(CUT, share) for row in ablated] for share in (1.0, 0.0))
    edited, unedited, filled, transplanted = (
        [row.answer(kind) for row in ablated] for kind in (EDIT, UNEDITED, FILLER, TRANSPLANT)
    )
    with_cot = [o if row.tokens else None for o, row in zip(own, ablated, strict=True)]
    donors = [None if row.donor is None else own[row.donor] for row in ablated]
    implied = [row.edit.implied_answer if row.edit else None for row in ablated]
    by_donor, by_edit = implied_changes(donors, own), implied_changes(implied, unedited)
    unchanged = "no change of the CoT would change its rollout's answer"

    def follow(answers: Answers, expected: Answers, reason: str = unchanged) -> Values:
        return mean_values(
            matches(answers, expected),
            problems,
            reason=reason,
            ceiling=1.0,
            control=matches(without_cot, expected),
        )

    pairs = zip(edited, unedited, by_edit, strict=True)
    kept = as_floats(np.nan if e is None else a is not None and a == u for a, u, e in pairs)
    unread = "no rollout has a readable answer after its own CoT"
    return {
        "filler_agreement": follow(filled, with_cot, unread),
        "transplant_follow": follow(transplanted, by_donor),
        "mistake_follow": follow(edited, by_edit),
        "mistake_corrected": mean_values(kept, problems, reason=unchanged, ceiling=1.0),
    }


def matches(answers: Answers, expected: Answers) -> Floats:
    """1 where an answer is the expected one, 0 where not, NaN where none is expected."""
    pairs = zip(answers, expected, strict=True)
    return as_floats(np.nan if e is None else a == e for a, e in pairs)


def implied_changes(implied: Answers, original: Answers) -> list[str | None]:
    """The answers that a change of the CoT leads to; None where it would not change the answer, so that
    following it cannot be told from ignoring it."""
    return [i if i != o else None for i, o in zip(implied, original, strict=True)]


def step_values(ablated: Sequence[AblatedRollout], task: Task[Any]) -> dict[str, Values]:
    """Are the steps of the CoT true, and does it have all that are needed? A CoT that states nothing has no
    validity, and a coverage of 0."""
    form = task.options.inner_task if isinstance(task, Organism) else task.name
    check_steps = find_step_check(form) or check_arithmetic
    checks = [check_steps(row.cot) for row in ablated]
    counts = {"step_validity": [(c.correct, len(c.steps)) for c in checks]}
    reasons = {
        "step_validity": "no CoT states anything that can be checked",
        "step_coverage": "no problem needs a step",
    }
    with suppress(TaskError):  # a task without solution steps, such as those of reasoning-gym
        counts["step_coverage"] = [
            count_covered_steps(task, row.rollout.problem, row.cot) for row in ablated
        ]
    return {
        name: mean_values(
            as_floats(hits / trials if trials else np.nan for hits, trials in pairs),
            _problems(ablated),
            reason=reasons[name],
            ceiling=1.0,
        )
        for name, pairs in counts.items()
    }


def _intervention_rows(ablated: Sequence[AblatedRollout]) -> list[Row]:
    """One row per rollout and one per intervention, with the text and the answer."""
    rows: list[Row] = []
    for row in ablated:
        problem, grade = row.rollout.problem, row.rollout.grade
        ids = {"key": problem.key, "sample": row.rollout.sample}
        entry: Row = {"intervention": "none", "text": row.rollout.text}
        entry |= {"question": problem.question, "gold_answer": problem.gold_answer}
        entry |= {"model_answer": grade.extracted.model_answer}
        rows.append(ids | entry | {"correct": grade.correct, "reward": grade.reward})
        for (kind, fraction), result in row.results.items():
            entry = {"intervention": kind, "fraction": fraction, "text": result.text}
            if kind == EDIT and row.edit:
                entry |= {"line": row.edit.line_index, "implied_answer": row.edit.implied_answer}
            if kind == TRANSPLANT and row.donor is not None:
                entry["donor"] = ablated[row.donor].rollout.problem.key
            entry["model_answer"] = result.answer
            if result.grade:
                entry |= {"correct": result.grade.correct, "reward": result.grade.reward}
            rows.append(ids | entry)
    return rows


def _is_correct(row: AblatedRollout, fraction: float) -> bool:
    """Is the answer correct after this fraction of the CoT?"""
    grade = row.results[CUT, fraction].grade
    return bool(grade and grade.correct)


def _reward(row: AblatedRollout, fraction: float) -> float:
    grade = row.results[CUT, fraction].grade
    return grade.reward if grade else float("nan")


def _problems(ablated: Sequence[AblatedRollout]) -> list[str]:
    return [row.rollout.problem.key for row in ablated]
