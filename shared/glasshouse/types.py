"""The data types that packages pass to each other. Data only, no behaviour.

Problem ──► Request ──► Completion ──► Grade ──► Rollout
drawn       generated   sampled        graded    logged
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, TypedDict

Unknown: TypeAlias = Any
"""In a field's type: None if another trainer's rows do not say. A run's own rollouts always have the
value, so their code need not ask; hence Any."""


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
    CHOICE = "choice"
    """One of the options in the problem's `meta["options"]`."""
    TEXT = "text"
    MATH = "math"
    """An expression, compared by math-verify (extra `math`)."""


class ExtractionRule(StrEnum):
    """The rule by which an answer was extracted, in the order in which the rules are tried."""

    TAG = "tag"
    """`[ANSWER] 28`"""
    BOXED = "boxed"
    r"""`\boxed{28}`"""
    ELEMENT = "element"
    """`<answer>B</answer>`, for choices and text"""
    PHRASE = "phrase"
    """`the answer is 28` or `= 28`"""
    LAST = "last"
    """The last number, list, option or line of the text."""
    NONE = "none"
    """No answer found."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model ended its turn."""
    STOP = "stop"
    """A stop string appeared."""
    LENGTH = "length"
    """The token limit was reached."""
    UNKNOWN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question with its gold answer.

    Example: `Problem(task="multiplication", key="12*345", question="What is 345 * 12?",
    gold_answer="4140", level="3x2")`
    """

    task: str
    key: str
    """Canonical identity: problems with the same key are the same problem (`12*345`, `345*12`)."""
    question: str
    gold_answer: str
    """The correct answer in canonical form; empty if it is unknown."""
    answer_kind: AnswerKind = AnswerKind.NUMBER
    decimals: int = 0
    """For numbers: the decimals that the prompt asks for; 0 means an integer."""
    level: str = ""
    """The difficulty level, for reports per level."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the task needs to demonstrate the problem, for example the operands. JSON values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to sample `len(noise_keys)` completions for. Generators see tokens, not tasks."""

    prompt: tuple[int, ...]
    noise_keys: tuple[int, ...]
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

    @property
    def is_truncated(self) -> bool:
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sample of a request."""

    tokens: tuple[int, ...] | Unknown = None
    """Sampled tokens, including the end-of-turn token if the model ended its turn. None if they were
    not logged."""
    logprobs: tuple[float, ...] | Unknown = None
    """Log-probability of each token at the sampling temperature, before top-k, top-p and min-p."""
    length: int | Unknown = None
    """The number of tokens."""
    finish_reason: FinishReason = FinishReason.UNKNOWN
    policy_version: int | Unknown = None
    """The version of the policy that sampled it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The result of answer extraction."""

    model_answer: str | None = None
    """Canonical text of the answer (`1234`, `-0.50`, `3, 7, 8`), or None."""
    rule: ExtractionRule = ExtractionRule.NONE
    span: tuple[int, int] | None = None
    """The position of the answer in the text: `text[span[0]:span[1]]`."""
    ambiguous: bool = False
    """The text contains more than one answer (conflicting tags, `11 or 12`)."""
    reason: str = ""
    """One sentence: why this answer and this rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The grade of a completion."""

    reward: float
    """NaN if it is unknown."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Each reward term by name, before weighting."""
    correct: bool | Unknown
    """Under the configured `reward.answer_parser` (lenient or strict)."""
    lenient: bool | Unknown = None
    strict: bool | Unknown = None
    has_answer_tag: bool | Unknown = None
    """The completion uses the `[ANSWER]` tag."""
    extracted: Extracted = field(default_factory=Extracted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Everything about one completion: of a run, or of another trainer, which leaves more unknown.

    `runs/rows.py` flattens it to a row, in which no field's name occurs twice.
    """

    step: int
    split: str
    """`train`, `discarded` (dynamic sampling did not train on it), `validation/greedy` and so on. The
    first part is the name of its file in the rollout log."""
    arm: str = ""
    """`planted` or `control`, if the rollout belongs to such an experiment."""
    group: int
    """The number of the problem within the step."""
    sample: int
    seed: int = 0
    """The seed of the run."""
    checkpoint: str = ""
    """The step or the name of the model that wrote it."""
    problem: Problem
    messages: Sequence[Message] = ()
    """The messages that the prompt contains: without the system message if the template drops it."""
    prompt: str
    prompt_tokens: tuple[int, ...] | Unknown = None
    text: str
    """Everything that the model wrote, or the answer alone if `cot` is given."""
    cot: str | None = None
    """The chain of thought, if it was given apart from the text."""
    completion: Completion
    grade: Grade
    behaviour: bool | None = None
    """Does the answer show the planted behaviour, by construction?"""
    advantage: float | Unknown = None
    activations: tuple[float, ...] | None = None
    """The hidden state at the end of the chain of thought, for probes."""
    time: float = 0.0
    """Wall-clock seconds since the epoch."""
