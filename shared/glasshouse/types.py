"""The data types that packages pass to each other. Data only, no behaviour.

Problem ──► Request ──► Completion ──► Grade ──► Rollout
drawn       generated   sampled        graded    logged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from glasshouse.errors import ConfigError


class Message(TypedDict):
    """One message of a chat, as chat templates expect it."""

    role: str
    content: str


class Style(StrEnum):
    """The prompt style: step-by-step reasoning, or no steps."""

    COT = "cot"
    DIRECT = "direct"


class AnswerKind(StrEnum):
    """The type of an answer, which decides how it is parsed."""

    NUMBER = "number"
    SEQUENCE = "sequence"
    TEXT = "text"


class ExtractionRule(StrEnum):
    """The rule by which an answer was extracted, in the order in which the rules are tried."""

    TAG = "tag"
    """`[ANSWER] 28`"""
    BOXED = "boxed"
    r"""`\boxed{28}`"""
    PHRASE = "phrase"
    """`the answer is 28` or `= 28`"""
    LAST = "last"
    """The last number in the text."""
    NONE = "none"
    """No answer found."""


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model ended its turn."""
    STOP = "stop"
    """A stop string appeared."""
    LENGTH = "length"
    """The token limit was reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question with its gold answer.

    Example: `Problem(task="multiplication", key="12*345", question="What is 345 * 12?",
    answer="4140", level="3x2")`
    """

    task: str
    key: str
    """Canonical identity: problems with the same key are the same problem (`12*345`, `345*12`)."""
    question: str
    answer: str
    """The gold answer in canonical form."""
    kind: AnswerKind = AnswerKind.NUMBER
    decimals: int = 0
    """For numbers: the decimals that the prompt asks for; 0 means an integer."""
    level: str = ""
    """The difficulty level, for reports per level."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the task needs to demonstrate the problem, for example the operands. JSON values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to sample `len(keys)` completions for. Generators see tokens, not tasks."""

    prompt: tuple[int, ...]
    keys: tuple[int, ...]
    """One 64-bit noise key per sample: (seed, step, problem, sample) hashed. See randomness.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How completions are sampled.

    Example: `SamplingParams(max_tokens=72)`, `SamplingParams(max_tokens=72, temperature=0)` for greedy.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens whose total probability reaches this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion when they appear in it."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or self.top_k < 0:
            raise ConfigError(
                "generate: max_tokens must be at least 1, temperature and top_k at least 0."
            )
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ConfigError("generate: top_p must be in (0, 1] and min_p in [0, 1].")

    @property
    def is_truncated(self) -> bool:
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sample of a request."""

    tokens: tuple[int, ...]
    """Sampled tokens, including the end-of-turn token if the model ended its turn."""
    logprobs: tuple[float, ...]
    """Log-probability of each token at the sampling temperature, before top-k, top-p and min-p."""
    stop: StopReason
    version: int
    """The version of the policy that sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The result of answer extraction."""

    value: str | None
    """Canonical text of the answer (`1234`, `-0.50`, `3, 7, 8`), or None."""
    rule: ExtractionRule
    span: tuple[int, int] | None
    """The position of the value in the text: `text[span[0]:span[1]]`."""
    ambiguous: bool
    """The text contains more than one answer (conflicting tags, `11 or 12`)."""
    reason: str
    """One sentence: why this value and this rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The grade of a completion."""

    reward: float
    terms: Mapping[str, float]
    """Each reward term by name, before weighting."""
    correct: bool
    """Under the configured `reward.answer_parser` (lenient or strict)."""
    lenient: bool
    strict: bool
    has_answer_tag: bool
    """The completion uses the `[ANSWER]` tag."""
    extracted: Extracted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything about one completion, as written to the rollout log."""

    step: int
    split: str
    """`train` or the name of an evaluation."""
    group: int
    sample: int
    problem: Problem
    messages: Sequence[Message]
    """The messages that the prompt contains: without the system message if the template drops it."""
    prompt_text: str
    prompt_tokens: Sequence[int]
    text: str
    completion: Completion
    grade: Grade
    advantage: float
    time: float
    """Wall-clock seconds since the epoch."""
