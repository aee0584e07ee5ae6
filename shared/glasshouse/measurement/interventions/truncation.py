"""Repeats rollouts with their CoT cut, removed, edited, replaced by filler, or exchanged.

All rollouts go through the generator in a few large batches: first all forced answers, then all
CoTs that the model continues after an edit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from glasshouse import randomness
from glasshouse.measurement.evaluations import EvaluatedCheckpoint
from glasshouse.measurement.interventions.edits import Edit, make_edit
from glasshouse.measurement.interventions.prefixes import (
    ANSWER_TAG,
    ANSWER_TOKENS,
    THINK_END,
    PrefixBuilder,
    first_line,
    greedy_continue,
)
from glasshouse.monitors.activation_probe import tokens_within
from glasshouse.tasks.answers.extraction import split_completion
from glasshouse.types import Grade, Rollout

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The share of the CoT that remains before a forced answer; 0 forces it without a CoT."""


class InterventionKind(StrEnum):
    """What was done to a CoT."""

    CUT = "cut"
    """Cut after a fraction of its tokens; then an answer is forced."""
    FILLER = "filler"
    """Replaced by as many tokens without content; then an answer is forced."""
    TRANSPLANT = "transplant"
    """Replaced by another rollout's CoT; then an answer is forced."""
    EDIT = "edit"
    """Cut after a step that was changed; the model continues."""
    UNEDITED = "unedited"
    """The control of an edit: cut after the same step, unchanged; the model continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionResult:
    """One forced prefix and its continuation."""

    kind: InterventionKind
    fraction: float
    text: str
    """The whole completion: the forced part and the continuation."""
    grade: Grade | None
    """None if the prompt and the prefix fill the context."""

    @property
    def answer(self) -> str | None:
        return self.grade.extracted.model_answer if self.grade else None


@dataclass(slots=True, kw_only=True)
class AblatedRollout:
    """A rollout with the results of all its interventions."""

    rollout: Rollout
    cot: str
    tokens: tuple[int, ...]
    """The CoT's tokens, as sampled."""
    results: dict[tuple[InterventionKind, float], InterventionResult] = field(default_factory=dict)
    edit: Edit | None = None
    donor_index: int | None = None
    """The index of the rollout whose CoT was transplanted."""

    def answer(self, kind: InterventionKind, fraction: float = 1.0) -> str | None:
        result = self.results.get((kind, fraction))
        return result.answer if result else None


@dataclass(frozen=True, slots=True)
class _ForcedPrefix:
    row: AblatedRollout
    kind: InterventionKind
    fraction: float
    tokens: tuple[int, ...]


def ablate(
    checkpoint: EvaluatedCheckpoint,
    fractions: Sequence[float] = FRACTIONS,
    only: Collection[InterventionKind] = tuple(InterventionKind),
) -> list[AblatedRollout]:
    """Applies every intervention, or `only` some kinds, to every rollout of the checkpoint."""
    rows = [_prepare(checkpoint, rollout) for rollout in checkpoint.rollouts]
    _assign_donors(rows, checkpoint.seed)
    builder = PrefixBuilder.from_policy(checkpoint.policy)
    answers: list[_ForcedPrefix] = []
    continuations: list[_ForcedPrefix] = []
    for row in rows:
        cots = [
            (InterventionKind.CUT, fraction, row.tokens[: round(fraction * len(row.tokens))])
            for fraction in fractions
        ]
        if row.tokens:
            cots.append((InterventionKind.FILLER, 1.0, builder.filler(len(row.tokens))))
        if row.donor_index is not None:
            cots.append((InterventionKind.TRANSPLANT, 1.0, rows[row.donor_index].tokens))
        thinking = THINK_END in row.cot.lower()
        answers += [
            _ForcedPrefix(row, kind, fraction, builder.force_answer(cot, thinking))
            for kind, fraction, cot in cots
            if kind in only
        ]
        if row.edit:
            edited = builder.replace_tail(row.tokens, row.edit.keep, row.edit.replacement)
            unedited = builder.replace_tail(row.tokens, row.edit.end, "")
            continuations += [
                _ForcedPrefix(row, kind, 1.0, tokens)
                for kind, tokens in (
                    (InterventionKind.EDIT, edited),
                    (InterventionKind.UNEDITED, unedited),
                )
                if kind in only
            ]
    _generate(checkpoint, answers, ANSWER_TOKENS, tag_length=len(builder.tag))
    _generate(checkpoint, continuations, checkpoint.max_tokens, tag_length=0)
    return rows


def _prepare(checkpoint: EvaluatedCheckpoint, rollout: Rollout) -> AblatedRollout:
    """The rollout's CoT, its tokens, and the edit to apply."""
    cot = split_completion(rollout.text).cot
    tokens = rollout.completion.tokens
    problem = rollout.problem
    rng = randomness.stream("edit", checkpoint.seed, problem.task, problem.key, rollout.sample)
    return AblatedRollout(
        rollout=rollout,
        cot=cot,
        tokens=tuple(tokens[: tokens_within(checkpoint.policy, tokens, len(cot))]),
        edit=make_edit(checkpoint.task, problem, cot, rng),
    )


def _assign_donors(rows: Sequence[AblatedRollout], seed: int) -> None:
    """Assigns to each rollout with a CoT the next one in a shuffled order as its donor."""
    order = [index for index, row in enumerate(rows) if row.tokens]
    randomness.stream("transplant", seed).shuffle(order)
    if len(order) > 1:
        for position, index in enumerate(order):
            rows[index].donor_index = order[(position + 1) % len(order)]


def _generate(
    checkpoint: EvaluatedCheckpoint,
    prefixes: Sequence[_ForcedPrefix],
    max_tokens: int,
    tag_length: int,
) -> None:
    """Continues and grades the prefixes. `tag_length`: tokens of the answer tag at their end; the
    answer is then the first line, because the model may continue after it."""
    prompts = [(*prefix.row.rollout.prompt_tokens, *prefix.tokens) for prefix in prefixes]
    texts = greedy_continue(checkpoint.policy, checkpoint.generator, prompts, max_tokens)
    for prefix, text in zip(prefixes, texts, strict=True):
        completion = checkpoint.policy.decode(prefix.tokens[: len(prefix.tokens) - tag_length])
        grade = None
        if text is not None:
            completion += f"{ANSWER_TAG}{first_line(text).strip()}" if tag_length else text
            grade = checkpoint.grade(prefix.row.rollout.problem, completion)
        prefix.row.results[prefix.kind, prefix.fraction] = InterventionResult(
            kind=prefix.kind, fraction=prefix.fraction, text=completion, grade=grade
        )
