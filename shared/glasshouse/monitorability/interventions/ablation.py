"""The same rollouts asked again: their CoT cut, emptied, edited, filled with dots, exchanged.

Every question of every rollout goes through the generation engine in a few large batches: first
all forced answers, then all CoTs that go on by themselves after an edit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from glasshouse import randomness
from glasshouse.answers import split
from glasshouse.monitorability.base import Subject
from glasshouse.monitorability.interventions.edits import Edit, edit
from glasshouse.monitorability.interventions.prefixes import (
    ROOM,
    TAG,
    Voice,
    first_line,
    go_on,
    within,
)
from glasshouse.types import Grade, Rollout

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of the CoT is left before an answer is forced; 0 forces it at once."""


class Change(StrEnum):
    """What was done to a CoT."""

    CUT = "cut"
    """Cut after a fraction of its tokens; then an answer is forced."""
    FILLER = "filler"
    """As many tokens without content; then an answer is forced."""
    TRANSPLANT = "transplant"
    """Another rollout's CoT; then an answer is forced."""
    EDIT = "edit"
    """One number changed and cut there; the model goes on by itself."""
    UNEDITED = "unedited"
    """The control of an edit: cut at the same place, nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One forced prefix and what came of it."""

    change: Change
    fraction: float
    text: str
    """The whole completion: what was forced, and what followed."""
    grade: Grade | None
    """None where the context had no room for it."""

    @property
    def answer(self) -> str | None:
        return self.grade.extracted.value if self.grade else None


@dataclass(slots=True, kw_only=True)
class Ablated:
    """A rollout with all that became of it."""

    rollout: Rollout
    cot: str
    tokens: tuple[int, ...]
    """The CoT's own tokens, as they were sampled."""
    asked: dict[tuple[Change, float], Asked] = field(default_factory=dict)
    edit: Edit | None = None
    donor: int | None = None
    """Whose CoT was transplanted: its place among the rollouts."""

    def answer(self, change: Change, fraction: float = 1.0) -> str | None:
        found = self.asked.get((change, fraction))
        return found.answer if found else None


def ablate(
    subject: Subject,
    fractions: Sequence[float] = FRACTIONS,
    only: Collection[Change] = tuple(Change),
) -> list[Ablated]:
    """Every intervention on every rollout of the subject, or `only` some kinds of them."""
    rows = [_opened(subject, rollout) for rollout in subject.rollouts]
    _exchange(rows, subject.seed)
    voice = Voice.of(subject.policy)
    answers: list[tuple[int, Change, float, tuple[int, ...]]] = []
    onward: list[tuple[int, Change, float, tuple[int, ...]]] = []
    for n, row in enumerate(rows):
        thinking = "</think>" in row.cot.lower()

        def forced(tokens: Sequence[int], thinking: bool = thinking) -> tuple[int, ...]:
            return voice.answering(tokens, thinking)

        for fraction in fractions:
            cut = row.tokens[: round(fraction * len(row.tokens))]
            answers.append((n, Change.CUT, fraction, forced(cut)))
        if row.tokens:
            answers.append((n, Change.FILLER, 1.0, forced(voice.filler(len(row.tokens)))))
        if row.donor is not None:
            answers.append((n, Change.TRANSPLANT, 1.0, forced(rows[row.donor].tokens)))
        if row.edit:
            wrong = voice.replaced(row.tokens, row.edit.keep, row.edit.wrong)
            right = voice.replaced(row.tokens, row.edit.end, "")
            onward += [(n, Change.EDIT, 1.0, wrong), (n, Change.UNEDITED, 1.0, right)]
    answers = [question for question in answers if question[1] in only]
    onward = [question for question in onward if question[1] in only]
    for questions, room, tag in ((answers, ROOM, len(voice.tag)), (onward, subject.max_tokens, 0)):
        prompts = [(*rows[n].rollout.prompt_tokens, *tokens) for n, _, _, tokens in questions]
        texts = go_on(subject.policy, subject.generator, prompts, room)
        for (n, change, fraction, tokens), text in zip(questions, texts, strict=True):
            prefix = subject.policy.text(tokens[: len(tokens) - tag])
            rollout = rows[n].rollout
            asked = _graded(subject, rollout, change, fraction, prefix, text)
            rows[n].asked[change, fraction] = asked
    return rows


def _opened(subject: Subject, rollout: Rollout) -> Ablated:
    """The rollout's CoT, its tokens, and the edit that will be tried on it."""
    cot = split(rollout.text).cot
    tokens = rollout.completion.tokens
    key = rollout.problem.key
    rng = randomness.stream("edit", subject.seed, rollout.problem.task, key, rollout.sample)
    return Ablated(
        rollout=rollout,
        cot=cot,
        tokens=tuple(tokens[: within(subject.policy, tokens, len(cot))]),
        edit=edit(subject.task, rollout.problem, cot, rng),
    )


def _exchange(rows: Sequence[Ablated], seed: int) -> None:
    """Everybody who has a CoT is given that of the next one, in an order that is keyed."""
    order = [n for n, row in enumerate(rows) if row.tokens]
    randomness.stream("transplant", seed).shuffle(order)
    if len(order) > 1:
        for place, n in enumerate(order):
            rows[n].donor = order[(place + 1) % len(order)]


def _graded(
    subject: Subject,
    rollout: Rollout,
    change: Change,
    fraction: float,
    forced: str,
    text: str | None,
) -> Asked:
    """A forced answer counts for its first line: what a model goes on to say is not asked for."""
    if text is None:
        return Asked(change=change, fraction=fraction, text=forced, grade=None)
    asked = change not in (Change.EDIT, Change.UNEDITED)
    whole = f"{forced}{TAG}{first_line(text).strip()}" if asked else forced + text
    return Asked(
        change=change, fraction=fraction, text=whole, grade=subject.grade(rollout.problem, whole)
    )
