"""Interventions: a checkpoint's rollouts are repeated from a changed prefix, and the answers compared.

    rollout ──► Trial ──► Prefix: the prompt and forced tokens ──► the model continues greedily ──► Forced: text, grade
                                                                   ──► a value per trial ──► Measurement

An intervention is a function from an `EvaluatedCheckpoint` to a `Measurement` under the decorator `intervention`.
The forced tokens are those of the rollout where they are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glasshouse import randomness
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.measurement.measure import Measurement, Row
from glasshouse.measurement.registry import SOURCES
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.scoring import tokens_within
from glasshouse.registry import Registry
from glasshouse.rollout.collector import make_grader
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import Task
from glasshouse.types import Grade, Problem, Request, Rollout, SamplingParams

if TYPE_CHECKING:  # torch is imported where a model is run
    from glasshouse.generate.engines import Generator
    from glasshouse.models.policy import Policy

ANSWER_TAG = "[ANSWER] "
"""The tag before the answer, in every task."""
THINK_END = "</think>"
ANSWER_TOKENS = 32
"""Most tokens of a forced answer."""
CHUNK_SIZE = 2048
"""Forced prefixes per call of the generator."""


def _check_intervention(name: str, part: Any) -> None:
    if not callable(part):
        raise ConfigError(f'The intervention "{name}" is not a function of a checkpoint.')
    if name in SOURCES:
        raise ConfigError(f'An intervention cannot be named "{name}"; choose another name.')


intervention: Registry[Callable[[EvaluatedCheckpoint], Measurement]] = Registry(
    "intervention",
    "interventions",
    key="monitor.interventions",
    modules={
        name: f"glasshouse.measurement.interventions.{name}"
        for name in ("cot", "hint_swap", "state_words")
    },
    check=_check_intervention,
)
"""Interventions by name; those of other people are named by the config key `monitor.interventions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCheckpoint:
    """A checkpoint with what is needed to generate and grade."""

    step: int
    config: Config
    """The run's: its seed, reward, and what it measures."""
    policy: Policy
    base: Policy | None = None
    """The base model, if a probe reads its states too."""
    generator: Generator
    task: Task[Any]
    rollouts: Sequence[Rollout]
    """One per held-out problem, sampled with the run's config."""
    collect: Callable[..., list[Rollout]]
    """Samples and grades completions as in training: `collect(problems, samples=4, split="monitor")`."""
    graded: Sequence[Rollout] = ()
    """All rollouts that `collect` has returned so far."""
    monitors: Sequence[Monitor] = ()
    """Monitors that need no fitting."""
    reserve: Sequence[Problem] = ()
    """Further held-out problems, on which monitors are fitted; fewer than planned if the task has fewer."""
    base_rows: Sequence[Row] | None = None
    """What was measured of the base model; None for the base model itself."""

    @property
    def seed(self) -> int:
        return self.config.seed

    def key(self, source: str) -> tuple[randomness.Part, ...]:
        """Keys the resampling of this checkpoint's measures of one source."""
        return (source, self.seed, self.step)

    def start_trials(self) -> list[Trial]:
        """One per rollout, with its CoT and the CoT's tokens as sampled."""
        return [Trial(rollout, *split_cot(self.policy, rollout)) for rollout in self.rollouts]

    def run_trials(self, prefixes: Sequence[tuple[Trial, Variant, Prefix]]) -> None:
        """Continue the prefix of each variant, and grade what results."""
        grade_text, longest = make_grader(self.config.reward), self.config.generate.max_tokens
        for is_answer, limit in ((True, ANSWER_TOKENS), (False, longest)):
            chosen = [entry for entry in prefixes if entry[2].is_answer == is_answer]
            prompts = [prefix.tokens for _, _, prefix in chosen]
            continued = greedy_continue(self.policy, self.generator, prompts, limit)
            for (trial, variant, prefix), text in zip(chosen, continued, strict=True):
                whole, grade = prefix.text, None
                if text is not None:
                    answer = f"{ANSWER_TAG}{first_line(text).strip()}"
                    whole += answer if is_answer else text
                    grade = grade_text(trial.rollout.problem, whole)
                trial.results[variant] = Forced(whole, grade)


Variant = str | tuple[str, float]
"""What was done to a CoT or a prompt, and the fraction of the CoT that remained."""


@dataclass(slots=True)
class Trial:
    """A rollout, and how the model continues after each change of its CoT or prompt."""

    rollout: Rollout
    cot: str
    tokens: tuple[int, ...]
    """The CoT's tokens, as sampled."""
    results: dict[Variant, Forced] = field(default_factory=dict)

    def answer(self, variant: Variant) -> str | None:
        return self.results[variant].answer if variant in self.results else None

    @property
    def thinks(self) -> bool:
        """The completion has a think block."""
        return THINK_END in self.cot.lower()


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the model is made to continue."""

    tokens: tuple[int, ...]
    """The prompt, and the forced tokens of a completion."""
    text: str
    """The completion so far, as it is graded, without the tag before the answer."""
    is_answer: bool = True
    """It ends in the tag: the answer is the first line, because the model may continue after it."""


@dataclass(frozen=True, slots=True)
class Forced:
    """A completion that was forced to begin with a prefix."""

    text: str
    grade: Grade | None
    """None if the prompt and the prefix fill the context."""

    @property
    def answer(self) -> str | None:
        return self.grade.extracted.model_answer if self.grade else None


@dataclass(frozen=True, slots=True)
class PrefixBuilder:
    """Builds forced prefixes in the tokens of one policy."""

    policy: Policy
    tag: tuple[int, ...]
    """The tag as tokenized before an answer: some tokenizers merge the space after it into the
    answer's first token."""
    newline: tuple[int, ...]

    @classmethod
    def from_policy(cls, policy: Policy) -> PrefixBuilder:
        tokens = tokenize(policy, f"{ANSWER_TAG}28")
        tag = tokens[: tokens_within(policy, tokens, len(ANSWER_TAG))]
        return cls(policy, tag, tokenize(policy, "\n"))

    def answer(self, trial: Trial, cot: Sequence[int]) -> Prefix:
        """The rollout's prompt, a CoT, then the tag. Example: `builder.answer(trial, ())` forces an answer
        at once."""
        tokens = self.close_cot(cot, trial.thinks)
        forced = (*trial.rollout.prompt_tokens, *tokens, *self.tag)
        return Prefix(forced, self.policy.decode(tokens))

    def close_cot(self, cot: Sequence[int], thinking: bool) -> tuple[int, ...]:
        """A CoT that ends with its line. `thinking`: the completion has a think block, which is closed if
        the CoT was cut within it."""
        text, tokens = self.policy.decode(cot), tuple(cot)
        if text and not text.endswith("\n"):
            tokens += self.newline
        if thinking and THINK_END not in text.lower():
            tokens += tokenize(self.policy, f"{THINK_END}\n")
        return tokens

    def edit(self, trial: Trial, keep: int, tail: str) -> Prefix:
        """The first `keep` characters of the CoT, then `tail`; the model continues."""
        tokens = trial.tokens
        count = tokens_within(self.policy, tokens, keep)
        missing = self.policy.decode(tokens)[len(self.policy.decode(tokens[:count])) : keep]
        forced = (*tokens[:count], *tokenize(self.policy, missing + tail))
        prompt = trial.rollout.prompt_tokens
        return Prefix((*prompt, *forced), self.policy.decode(forced), is_answer=False)


def split_cot(policy: Policy, rollout: Rollout) -> tuple[str, tuple[int, ...]]:
    """The rollout's CoT, and its tokens as sampled."""
    cot, tokens = split_completion(rollout.text).cot, rollout.completion.tokens
    return cot, tuple(tokens[: tokens_within(policy, tokens, len(cot))])


def tokenize(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def greedy_continue(
    policy: Policy, generator: Generator, prompts: Sequence[tuple[int, ...]], max_tokens: int
) -> list[str | None]:
    """The greedy continuation of each prompt; None for a prompt that fills the context. Equal prompts are generated
    once, in chunks by length, which saves padding."""
    fitting = {prompt for prompt in prompts if len(prompt) < policy.context_length}
    distinct = sorted(fitting, key=lambda prompt: (len(prompt), prompt))
    continuations: dict[tuple[int, ...], str] = {}
    for start in range(0, len(distinct), CHUNK_SIZE):
        chunk = distinct[start : start + CHUNK_SIZE]
        limit = min(max_tokens, policy.context_length - len(chunk[-1]))
        requests = [Request(prompt=p, noise_keys=(randomness.key("forced", *p),)) for p in chunk]
        groups = generator.generate(requests, SamplingParams(max_tokens=limit, temperature=0))
        texts = policy.decode_batch([group[0].tokens for group in groups])
        continuations |= dict(zip(chunk, texts, strict=True))
    return [continuations.get(prompt) for prompt in prompts]


def first_line(text: str) -> str:
    """The first line that is not blank: the content of a forced answer."""
    return next((line for line in text.splitlines() if line.strip()), "")
