"""Interventions: a checkpoint's rollouts are repeated from a changed prefix, and the answers compared.

    rollout ──► Prefix: the prompt and forced tokens ──► the model continues greedily ──► Forced: text, grade
                                                                        ──► values per rollout ──► Measurement

An intervention is a function from an `EvaluatedCheckpoint` to a `Measurement` under the decorator `intervention`.
The forced tokens are those of the rollout where they are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glasshouse import randomness
from glasshouse.errors import ConfigError
from glasshouse.measurement.measure import Measurement, Row
from glasshouse.monitors.fitted import tokens_within
from glasshouse.registry import Registry
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
CHUNK_SIZE = 256
"""Forced prefixes per call of the generator."""
RESERVED = ("train", "interventions", "monitors", "organism", "substitution")
"""First segments of published measure ids."""


def _check_intervention(name: str, part: Any) -> None:
    if not callable(part):
        raise ConfigError(f'The intervention "{name}" is not a function of a checkpoint.')
    if name in RESERVED:
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
    policy: Policy
    generator: Generator
    task: Task[Any]
    rollouts: Sequence[Rollout]
    """One per held-out problem, sampled with the run's config."""
    collect: Callable[..., list[Rollout]]
    """Samples and grades completions as in training: `collect(problems, samples=4, split="monitor")`."""
    grade: Callable[[Problem, str], Grade]
    """The run's grader."""
    max_tokens: int
    """The run's limit on a completion's length."""
    graded: Sequence[Rollout] = ()
    """All rollouts that `collect` has returned so far."""
    seed: int = 0
    reserve: Sequence[Problem] = ()
    """Further held-out problems, on which monitors are fitted; fewer than planned if the task has fewer."""
    base_rows: Sequence[Row] | None = None
    """What was measured of the base model; None for the base model itself."""

    def key(self, *words: str) -> tuple[randomness.Part, ...]:
        """Keys the resampling of this checkpoint's measures."""
        return (words[0], self.seed, self.step, *words[1:])

    def force(self, prefixes: Sequence[Prefix]) -> list[Forced]:
        """Continue the prefixes, and grade what results."""
        texts: dict[int, str | None] = {}
        for is_answer, limit in ((True, ANSWER_TOKENS), (False, self.max_tokens)):
            places = [n for n, prefix in enumerate(prefixes) if prefix.is_answer == is_answer]
            prompts = [prefixes[n].tokens for n in places]
            continued = greedy_continue(self.policy, self.generator, prompts, limit)
            texts |= dict(zip(places, continued, strict=True))
        return [self._grade(prefix, texts[n]) for n, prefix in enumerate(prefixes)]

    def _grade(self, prefix: Prefix, text: str | None) -> Forced:
        if text is None:
            return Forced(prefix.text, None)
        text = f"{ANSWER_TAG}{first_line(text).strip()}" if prefix.is_answer else text
        return Forced(prefix.text + text, self.grade(prefix.rollout.problem, prefix.text + text))


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the model is made to continue."""

    rollout: Rollout
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

    def answer(self, rollout: Rollout, cot: Sequence[int] | str, thinking: bool = False) -> Prefix:
        """The rollout's prompt, a CoT, then the tag. Example: `builder.answer(rollout, "")` forces an answer
        at once."""
        tokens = self.close_cot(
            tokenize(self.policy, cot) if isinstance(cot, str) else cot, thinking
        )
        forced = (*rollout.prompt_tokens, *tokens, *self.tag)
        return Prefix(rollout, forced, self.policy.decode(tokens))

    def close_cot(self, cot: Sequence[int], thinking: bool) -> tuple[int, ...]:
        """A CoT that ends with its line. `thinking`: the completion has a think block, which is closed if
        the CoT was cut within it."""
        text, tokens = self.policy.decode(cot), tuple(cot)
        if text and not text.endswith("\n"):
            tokens += self.newline
        if thinking and THINK_END not in text.lower():
            tokens += tokenize(self.policy, f"{THINK_END}\n")
        return tokens

    def edit(self, rollout: Rollout, tokens: Sequence[int], keep: int, tail: str) -> Prefix:
        """The first `keep` characters of the CoT with these tokens, then `tail`; the model continues."""
        count = tokens_within(self.policy, tokens, keep)
        missing = self.policy.decode(tokens)[len(self.policy.decode(tokens[:count])) : keep]
        forced = (*tokens[:count], *tokenize(self.policy, missing + tail))
        text = self.policy.decode(forced)
        return Prefix(rollout, (*rollout.prompt_tokens, *forced), text, is_answer=False)


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
