"""The nouns of Glasshouse: data only, no behaviour beyond what a field's name promises.

    Problem ──► Request ──► Completion ──► Grade ──► Rollout
    asked       sent        received       judged    recorded

A value goes through the rooms in this direction and never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict


class Message(TypedDict):
    """One turn of a chat, as every chat template takes it."""

    role: str
    content: str


class Style(StrEnum):
    """How a task asks: with steps, or with steps forbidden."""

    COT = "cot"
    DIRECT = "direct"


class AnswerKind(StrEnum):
    """What a task's answer looks like, so that the parser knows what to read."""

    NUMBER = "number"
    SEQUENCE = "sequence"
    TEXT = "text"


class Rule(StrEnum):
    """Which rule of the extraction chain found the answer, in the order they are tried."""

    TAG = "tag"
    """`[ANSWER] 28`"""
    BOXED = "boxed"
    r"""`\boxed{28}`"""
    PHRASE = "phrase"
    """`the answer is 28` or `= 28`"""
    LAST = "last"
    """The last number in the text."""
    NONE = "none"
    """Nothing that reads as an answer."""


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model ended its turn."""
    STOP = "stop"
    """A stop string appeared."""
    LENGTH = "length"
    """The token limit cut it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to ask, with its gold answer.

    Example: `Problem(task="multiplication", key="12*345", question="What is 345 * 12?",
    answer="4140", level="3x2")`
    """

    task: str
    key: str
    """Canonical identity: two problems with one key are the same problem (`12*345`, `345*12`)."""
    question: str
    answer: str
    """The gold answer as the parser would print it."""
    kind: AnswerKind = AnswerKind.NUMBER
    decimals: int = 0
    """For numbers: how many decimals the prompt asks for; 0 means an integer."""
    level: str = ""
    """The difficulty this problem was drawn at, for per-difficulty reports."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the task needs to demonstrate it (the operands, say). JSON values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt for which `len(keys)` samples are wanted; the generator knows tokens, not tasks."""

    prompt: tuple[int, ...]
    keys: tuple[int, ...]
    """One 64-bit noise key per sample: (seed, step, problem, sample) hashed. See randomness.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What came back for one sample of a request."""

    tokens: tuple[int, ...]
    """Sampled tokens, the end-of-turn token included if the model ended its turn."""
    logprobs: tuple[float, ...]
    """Log-probability of each token at the sampling temperature, before top-k, top-p and min-p."""
    stop: StopReason
    version: int
    """Which policy version sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """What the parser read, and how."""

    value: str | None
    """Canonical text of the answer (`1234`, `-0.50`, `3, 7, 8`), or None."""
    rule: Rule
    span: tuple[int, int] | None
    """Where in the text the value stands: `text[span[0]:span[1]]`."""
    ambiguous: bool
    """The text offers more than one answer (conflicting tags, `11 or 12`)."""
    reason: str
    """One sentence for people: why this value and this rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A completion's verdict."""

    reward: float
    parts: Mapping[str, float]
    """Each reward term by name, before weighting."""
    correct: bool
    """Under the configured reading (lenient or strict)."""
    lenient: bool
    strict: bool
    tagged: bool
    """Format compliance: the `[ANSWER]` tag was used."""
    extracted: Extracted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything about one completion. Written once, never changed."""

    step: int
    split: str
    """`train` or the name of an evaluation."""
    group: int
    sample: int
    problem: Problem
    messages: Sequence[Message]
    prompt_text: str
    prompt_tokens: Sequence[int]
    text: str
    completion: Completion
    grade: Grade
    advantage: float
    time: float
    """Wall-clock seconds since the epoch."""
