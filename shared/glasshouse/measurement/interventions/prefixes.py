"""Forced prefixes: the prompt and chosen tokens of a completion, which the model continues.

prompt ─► tokens of the CoT, kept from the rollout where unchanged ─► [ANSWER] ─► greedy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glasshouse import randomness
from glasshouse.monitors.activation_probe import tokens_within
from glasshouse.types import Request, SamplingParams

if TYPE_CHECKING:
    from glasshouse.generate.engines import Generator
    from glasshouse.models.policy import Policy

ANSWER_TAG = "[ANSWER] "
"""The tag before the answer, in every task."""
THINK_END = "</think>"
ANSWER_TOKENS = 32
"""Most tokens of a forced answer."""
CHUNK_SIZE = 256
"""Forced prefixes per call of the generator."""


@dataclass(frozen=True, slots=True)
class PrefixBuilder:
    """Builds forced prefixes in the tokens of one policy.

    Example: `PrefixBuilder.from_policy(policy).force_answer(tokens, thinking=False)` ends in the
    tokens of `[ANSWER] `.
    """

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

    def force_answer(self, cot: Sequence[int], thinking: bool) -> tuple[int, ...]:
        """Tokens of a CoT, then the tag on a new line. `thinking`: the completion has a think
        block, which is closed first if the CoT was cut within it."""
        text = self.policy.decode(cot)
        tokens = tuple(cot)
        if text and not text.endswith("\n"):
            tokens += self.newline
        if thinking and THINK_END not in text.lower():
            tokens += tokenize(self.policy, f"{THINK_END}\n")
        return tokens + self.tag

    def replace_tail(self, tokens: Sequence[int], keep: int, tail: str) -> tuple[int, ...]:
        """The tokens of the first `keep` characters, then the tokens of `tail`."""
        count = tokens_within(self.policy, tokens, keep)
        missing = self.policy.decode(tokens)[len(self.policy.decode(tokens[:count])) : keep]
        return (*tokens[:count], *tokenize(self.policy, missing + tail))

    def filler(self, length: int) -> tuple[int, ...]:
        """`length` tokens without content: dots."""
        return (tokenize(self.policy, ".")[0],) * length


def tokenize(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def greedy_continue(
    policy: Policy, generator: Generator, prompts: Sequence[tuple[int, ...]], max_tokens: int
) -> list[str | None]:
    """The greedy continuation of each prompt; None for a prompt that fills the context.

    Equal prompts are generated once. Chunks are formed in order of length, to save padding, so
    that the content of a chunk is a function of the prompts alone.
    """
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
