"""Answers that could not be read and completions that were cut: neither says that an answer is wrong.

Every command that grades counts both apart from accuracy, with the ends of a few completions as examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from glasshouse.tasks.answers import extract_answer_to
from glasshouse.terminal import terminal_safe
from glasshouse.types import ExtractionRule, FinishReason, Rollout

MAX_UNREAD = 0.2
"""With a larger share of unread answers, an accuracy says more about the parser than about the model."""
MAX_CUT = 1 / 3
EXAMPLES = 3
EXAMPLE_CHARACTERS = 60


@dataclass(slots=True, kw_only=True)
class Reading:
    """How many answers of some rollouts were read."""

    answers: int = 0
    """Rollouts whose answer was looked for. None if the file of another trainer has the grades."""
    unread: int = 0
    """Rollouts in which no rule of the lenient parser found an answer."""
    ended: int = 0
    """Rollouts that say how they ended."""
    cut: int = 0
    """Rollouts that reached the token limit."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Rollouts by the kind of answer that was looked for."""
    examples: list[str] = field(default_factory=list)
    """The ends of the first unread completions."""

    def add(self, rollout: Rollout) -> None:
        """Count a rollout."""
        self.ended += rollout.completion.finish_reason is not FinishReason.UNKNOWN
        self.cut += rollout.completion.finish_reason is FinishReason.LENGTH
        if not rollout.grade.extracted.reason:  # the parser was not asked
            return
        self.answers += 1
        kind = rollout.problem.answer_kind.value
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if is_unread(rollout):
            self.unread += 1
            text = " ".join(rollout.text[-4 * EXAMPLE_CHARACTERS :].split())
            if len(text) > EXAMPLE_CHARACTERS:
                end = text[-EXAMPLE_CHARACTERS:]
                text = f"… {end.partition(' ')[2] or end}"  # from the next word on
            if len(self.examples) < EXAMPLES and text not in self.examples:
                self.examples.append(text)

    def merge(self, other: Reading) -> None:
        """Add the counts of other rollouts."""
        for name in ("answers", "unread", "ended", "cut"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kinds = dict(Counter(self.kinds) + Counter(other.kinds))
        self.examples = [*self.examples, *other.examples][:EXAMPLES]

    @property
    def unread_share(self) -> float:
        return self.unread / max(1, self.answers)

    @property
    def cut_share(self) -> float:
        return self.cut / max(1, self.ended)


def count_unread(rollouts: Iterable[Rollout]) -> Reading:
    """Count the unread answers and the cut completions of rollouts."""
    reading = Reading()
    for rollout in rollouts:
        reading.add(rollout)
    return reading


def is_unread(rollout: Rollout) -> bool:
    """Whether no rule of the lenient parser finds an answer, also where the strict one graded."""
    if rollout.grade.extracted.model_answer is not None:
        return False
    return extract_answer_to(rollout.problem, rollout.text).rule is ExtractionRule.NONE


def describe_reading(reading: Reading, *, with_kinds: bool = False) -> list[str]:
    """Return one line, and one more for each example of an unread answer. The kinds matter for other people's
    problems, where they were detected.

    Example: `describe_reading(reading)[0]` is "unread answers 0 of 240, cut completions 3 of 240".
    """
    unread = f"{reading.unread:,} of {reading.answers:,}" if reading.answers else "unknown"
    cut = f"{reading.cut:,} of {reading.ended:,}" if reading.ended else "unknown"
    kinds = f"kind of answers {describe_kinds(reading)}, " if with_kinds and reading.answers else ""
    line = f"{kinds}unread answers {unread}, cut completions {cut}"
    return [line, *(terminal_safe(f"  unread: {text or '(empty)'}") for text in reading.examples)]


def explain_unread(reading: Reading, set_kind: str, allow: str) -> str:
    """Why no accuracy is given, and what to do; empty if enough answers were read. `set_kind` and `allow` are
    what the user would write."""
    if reading.unread_share <= MAX_UNREAD:
        return ""
    return (
        f"{reading.unread:,} of {reading.answers:,} answers are unread (looked for: {describe_kinds(reading)}). "
        f"Look at the examples; set the kind of answer ({set_kind}), check the prompt or the token limit, or "
        f"print accuracies anyway ({allow})"
    )


def describe_kinds(reading: Reading) -> str:
    """Example: "number", or of mixed answers "number (190), text (10)"."""
    if len(reading.kinds) == 1:
        return next(iter(reading.kinds))
    return ", ".join(f"{kind} ({count:,})" for kind, count in sorted(reading.kinds.items()))
