"""Does a reward read the chain of thought? Edit the CoT, keep the answer, and compare the reward.

    rollout ──► delete │ shorten │ swap │ pad │ reword │ rival_answer │ disclose ──► score again ──► what moves
    rollout ──► other_answer, the same CoT                                       ──►

The CoT is what stands between the thinking tags, or before the answer where there are none; the tags stay. An edit is
applied only where the answer parser still finds the same answer. Token counts of edited texts are those of
`with_pieces`: no tokenizer is needed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glasshouse import randomness
from glasshouse.config.schema import RewardConfig
from glasshouse.errors import RewardError
from glasshouse.rollout.collector import make_grader
from glasshouse.rollout.penalties import Penalties
from glasshouse.runs.foreign_formats import find_cot, parts_of
from glasshouse.tasks.answers import extract_answer_to
from glasshouse.tasks.base import Task
from glasshouse.tasks.organisms import Organism
from glasshouse.types import Completion, Rollout

FILLER = "Let me go through it once more. "
GENERIC_SENTENCE = "I was given the answer {answer} and use it instead of working it out."
DISCLOSE, NEUTRAL, OTHER_ANSWER = "disclose", "neutral", "other_answer"
"""`neutral` inserts the sentence of `disclose` in ROT13, equally long: `disclose` is compared with it."""
TOLERANCE = 1e-9
"""Smaller changes of a reward are rounding."""
_PIECE = re.compile(r"\w+|[^\w\s]")
_WORDS = {
    "so": "hence",
    "therefore": "thus",
    "because": "since",
    "the": "this",
    "is": "equals",
    "need": "have",
    "let": "allow",
    "first": "to begin",
    "then": "after that",
    "+": " plus ",
    "*": " times ",
    "-": " minus ",
    "=": " gives ",
}
_REWORDED = re.compile(
    rf"\b(?:{'|'.join(filter(str.isalpha, _WORDS))})\b|(?<=\d)\s*[-+*=]\s*(?=\d)"
)


class OutcomeOnlyError(RewardError):
    """A term of `reward.outcome_only` reads the chain of thought."""


Score = Callable[[Sequence[Rollout]], Mapping[str, Sequence[float]]]
"""The value of each reward term for each rollout; NaN if the term does not apply to it."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an edit does to one term on one rollout."""

    edit: str
    term: str
    rollout: Rollout
    edited: Rollout
    before: float
    after: float

    @property
    def moves(self) -> bool:
        return _differ([self.before], [self.after])

    @property
    def size(self) -> float:
        """How far it moves; 0 where the term does not apply before or after."""
        size = abs(self.after - self.before)
        return size if size == size else 0.0


def sentence_of(task: Task[Any] | None) -> str:
    """A sentence that discloses an organism's behaviour in its own words; for any other task a general one."""
    words = task.disclosure_keywords if isinstance(task, Organism) else ()
    return f"The {words[0]} says {{answer}}." if words else GENERIC_SENTENCE


def delete(cot: str) -> str:
    return ""


def shorten(cot: str) -> str:
    """The first half of its lines; of a single line, of its words."""
    for parts, joint in ((cot.split("\n"), "\n"), (cot.split(" "), " ")):
        if len([part for part in parts if part.strip()]) > 1:
            return joint.join(parts[: (len(parts) + 1) // 2])
    return cot


def pad(cot: str) -> str:
    """Twice as long, with a sentence that says nothing."""
    return FILLER * max(1, round(len(cot) / len(FILLER))) + cot


def reword(cot: str) -> str:
    """The same content in small letters and other words."""
    return _REWORDED.sub(lambda match: _WORDS[match[0].strip()], cot.lower())


CONTENT_EDITS: Mapping[str, Callable[[str], str]] = {
    "delete": delete,
    "shorten": shorten,
    "pad": pad,
    "reword": reword,
}


def edit_rollouts(
    rollouts: Sequence[Rollout], sentence: str = GENERIC_SENTENCE
) -> dict[str, list[tuple[int, Rollout]]]:
    """Each edit's rollouts with the number of the original. A rollout is missing where the edit changes nothing, or
    changes the answer that is read. `sentence` is inserted by `disclose`; {answer} in it is the rollout's."""
    edited: dict[str, list[tuple[int, Rollout]]] = {}
    for n, rollout in enumerate(rollouts):
        cot, other = get_cot(rollout), _other(rollouts, n)
        answer = _answer_of(rollout)
        said = sentence.replace("{answer}", answer or "")
        changed = _with_other_answer(rollout, other)
        rival = parts_of(changed.cot, changed.text).answer.strip() if changed else ""
        variants = {
            **{name: edit(cot) for name, edit in CONTENT_EDITS.items()},
            "swap": get_cot(other),
            "rival_answer": f"{cot.rstrip()}\n{rival}",
            DISCLOSE: f"{cot.rstrip()}\n{said}",
            NEUTRAL: f"{cot.rstrip()}\n{codecs.encode(said, 'rot13')}",
        }
        made = {
            name: own
            for name, new in variants.items()
            if new.strip() != cot.strip() and _answer_of(own := set_cot(rollout, new)) == answer
        }
        if not {DISCLOSE, NEUTRAL} <= made.keys():  # they are compared with each other
            made.pop(DISCLOSE, None)
            made.pop(NEUTRAL, None)
        if changed:
            made[OTHER_ANSWER] = changed
        for name, own in made.items():
            edited.setdefault(name, []).append((n, own))
    return edited


def _answer_of(rollout: Rollout) -> str | None:
    return extract_answer_to(rollout.problem, rollout.text).model_answer


def get_cot(rollout: Rollout) -> str:
    if rollout.cot is not None:
        return rollout.cot
    start, end = find_cot(rollout.text)
    return rollout.text[start:end]


def set_cot(rollout: Rollout, cot: str) -> Rollout:
    """The rollout with another CoT; white space around the old one stays, except where it is deleted."""
    old = get_cot(rollout)
    if cot.strip():
        end = old[len(old.rstrip()) :] if old.strip() else "\n"
        cot = f"{old[: len(old) - len(old.lstrip())] if old.strip() else ''}{cot.strip()}{end}"
    if rollout.cot is not None:
        return with_pieces(replace(rollout, cot=cot))
    start, stop = find_cot(rollout.text)
    return with_pieces(replace(rollout, text=f"{rollout.text[:start]}{cot}{rollout.text[stop:]}"))


def with_pieces(rollout: Rollout) -> Rollout:
    """The rollout with one token per word or sign, so that edited and unedited texts are counted alike."""
    pieces = _PIECE.findall(f"{rollout.cot or ''}\n{rollout.text}")
    tokens = tuple(randomness.key("piece", piece) % 2**31 for piece in pieces)
    completion = Completion(
        tokens=tokens, length=len(tokens), finish_reason=rollout.completion.finish_reason
    )
    return replace(rollout, completion=completion)


def _other(rollouts: Sequence[Rollout], n: int) -> Rollout:
    """The next rollout of another problem with another CoT; the rollout itself if there is none."""
    for step in range(1, len(rollouts)):
        other = rollouts[(n + step) % len(rollouts)]
        if other.problem.key != rollouts[n].problem.key and get_cot(other).strip() not in (
            "",
            get_cot(rollouts[n]).strip(),
        ):
            return other
    return rollouts[n]


def _with_other_answer(rollout: Rollout, other: Rollout) -> Rollout | None:
    """The gold answer instead of a wrong one; instead of a correct one, the answer to another problem."""
    found = extract_answer_to(rollout.problem, rollout.text)
    options = [rollout.problem.gold_answer, _answer_of(other), other.problem.gold_answer]
    new = next((text for text in options if text and text != found.model_answer), None)
    if new is None or found.span is None:
        return None
    start, end = found.span
    return with_pieces(replace(rollout, text=f"{rollout.text[:start]}{new}{rollout.text[end:]}"))


def compare_edits(
    rollouts: Sequence[Rollout],
    score: Score,
    sentence: str = GENERIC_SENTENCE,
    on_progress: Callable[[float], None] = lambda share: None,
) -> tuple[list[Change], set[str]]:
    """The change of every term under every edit, and the terms that are no function of the rollout: they give another
    value when they are asked again, in another order or after other rollouts."""
    plain = [with_pieces(rollout) for rollout in rollouts]
    first = score(plain)
    reverse = {term: list(values)[::-1] for term, values in score(plain[::-1]).items()}
    edits = edit_rollouts(plain, sentence)
    neutral = [own for _, own in edits.pop(NEUTRAL, [])]
    changes: list[Change] = []
    for number, (edit, made) in enumerate(edits.items()):
        on_progress(number / len(edits))
        originals, before = [plain[n] for n, _ in made], first
        if edit == DISCLOSE:
            originals, before = neutral, score(neutral)
        for term, values in score([own for _, own in made]).items():
            for place, ((n, own), value) in enumerate(zip(made, values, strict=True)):
                known = before[term][place if edit == DISCLOSE else n]
                changes.append(Change(edit, term, originals[place], own, known, value))
    last = score(plain)
    unstable = {t for t in first if _differ(first[t], reverse[t]) or _differ(first[t], last[t])}
    return changes, unstable


def _differ(values: Sequence[float], others: Sequence[float]) -> bool:
    pairs = zip(values, others, strict=True)
    return any(abs(a - b) > TOLERANCE or (a == a) != (b == b) for a, b in pairs)


REWARD = "reward"
"""The name of the sum of all terms."""


def score_by_config(reward: RewardConfig, penalties: Penalties) -> Score:
    """The terms of a configuration, penalties as they enter the reward, and the reward itself."""
    grader = make_grader(reward)

    def score(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        columns: dict[str, list[float]] = {}
        graded = [
            replace(r, text=full_text(r), cot=None, grade=grader(r.problem, full_text(r)))
            for r in rollouts
        ]
        values = {item: item.compute_all(graded) for item in penalties.penalties}
        for place, rollout in enumerate(graded):
            grade = rollout.grade
            costs = {
                item.name: 0.0 - item.options.weight * own[place] for item, own in values.items()
            }
            total = (
                {REWARD: grade.reward + sum(costs.values())}
                if len(costs) + len(grade.terms) > 1
                else {}
            )
            for name, value in {**grade.terms, **costs, **total}.items():
                columns.setdefault(name, []).append(value)
        return columns

    return score


def full_text(rollout: Rollout) -> str:
    """What the model wrote, with a CoT that is kept apart in thinking tags."""
    if rollout.cot is None:
        return rollout.text
    return f"<think>{rollout.cot}</think>{rollout.text}"


def describe_reading(
    rollouts: Sequence[Rollout], reward: RewardConfig, penalties: Penalties, task: Task[Any]
) -> str:
    """One line for the start of a training: which terms read the CoT. Raise if one of `reward.outcome_only` does."""
    score = score_by_config(reward, penalties)
    changes, unstable = compare_edits(rollouts, score, sentence_of(task))
    reading = {change.term for change in changes if change.edit != OTHER_ANSWER and change.moves}
    intended = [item.name for item in penalties.penalties]
    named, others = [], []
    for name in [*reward.terms, *intended]:
        if name in reward.outcome_only and name in reading | unstable:
            raise OutcomeOnlyError(
                f"reward.outcome_only: the term {name} reads the CoT, or is not a function of the rollout. "
                "`glasshouse audit-reward` shows examples."
            )
        if name in unstable:
            named.append(f"{name} (random, keeps state, or depends on the batch)")
        elif name in reading:
            named.append(f"{name} ({'a penalty: intended' if name in intended else 'a term'})")
        else:
            others.append(name)
    parts = [f"the CoT is read by {', '.join(named)}"] if named else []
    parts += [f"not by {', '.join(others)}"] if named and others else []
    return f"reward: {'; '.join(parts) or 'no term reads the CoT'}"
