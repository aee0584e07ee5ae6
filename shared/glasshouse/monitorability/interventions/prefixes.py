"""Forced prefixes: a prompt, some chosen tokens of a completion, and the model goes on from there.

prompt ─► tokens of the CoT, the rollout's own wherever it is kept ─► [ANSWER] ─► greedy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glasshouse import randomness
from glasshouse.generate import Generator, Sampling
from glasshouse.models import Policy
from glasshouse.types import Request

TAG = "[ANSWER] "
"""What every task ends with."""
THOUGHT = "</think>"
ROOM = 32
"""Tokens that a forced answer may take."""
CHUNK = 256
"""Forced prefixes that are generated in one call."""


@dataclass(frozen=True, slots=True)
class Voice:
    """How a policy spells what is forced on it.

    Example: `Voice.of(policy).answering(tokens, thinking=False)` ends in the tokens of `[ANSWER] `
    """

    policy: Policy
    tag: tuple[int, ...]
    """The tag as it is spelt in front of an answer: some tokenizers put the space that follows it
    into the answer's first token."""
    line: tuple[int, ...]

    @classmethod
    def of(cls, policy: Policy) -> Voice:
        whole = spelt(policy, f"{TAG}28")
        return cls(policy, whole[: within(policy, whole, len(TAG))], spelt(policy, "\n"))

    def answering(self, cot: Sequence[int], thinking: bool) -> tuple[int, ...]:
        """These tokens of a CoT, then the tag on a line of its own. `thinking`: the completion
        thinks in a block, which is closed first if the cut left it open."""
        text = self.policy.text(cot)
        tokens = tuple(cot)
        if text and not text.endswith("\n"):
            tokens += self.line
        if thinking and THOUGHT not in text.lower():
            tokens += spelt(self.policy, f"{THOUGHT}\n")
        return tokens + self.tag

    def replaced(self, tokens: Sequence[int], keep: int, then: str) -> tuple[int, ...]:
        """The first `keep` characters as the completion spelt them, then another text."""
        count = within(self.policy, tokens, keep)
        missing = self.policy.text(tokens)[len(self.policy.text(tokens[:count])) : keep]
        return (*tokens[:count], *spelt(self.policy, missing + then))

    def filler(self, length: int) -> tuple[int, ...]:
        """As many tokens, all alike and without content: dots."""
        return (spelt(self.policy, ".")[0],) * length


def spelt(policy: Policy, text: str) -> tuple[int, ...]:
    return tuple(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def within(policy: Policy, tokens: Sequence[int], characters: int) -> int:
    """How many of the tokens lie wholly in the first so many characters of their text."""
    low, high = 0, len(tokens)
    while low < high:  # text only grows with tokens
        middle = (low + high + 1) // 2
        if len(policy.text(tokens[:middle])) <= characters:
            low = middle
        else:
            high = middle - 1
    return low


def go_on(
    policy: Policy, generator: Generator, prompts: Sequence[tuple[int, ...]], room: int
) -> list[str | None]:
    """The greedy continuation of each prompt; None where the context has no room for one.

    Equal prompts are asked once. Chunks are cut from the prompts in order of length, so that
    little of a batch is padding; what is in a chunk is a function of the prompts alone.
    """
    wanted = sorted({p for p in prompts if len(p) < policy.context}, key=lambda p: (len(p), p))
    found: dict[tuple[int, ...], str] = {}
    for start in range(0, len(wanted), CHUNK):
        chunk = wanted[start : start + CHUNK]
        tokens = min(room, policy.context - len(chunk[-1]))
        requests = [Request(prompt=p, keys=(randomness.key("forced", *p),)) for p in chunk]
        done = generator.generate(requests, Sampling(max_tokens=tokens, temperature=0))
        texts = policy.texts([completions[0].tokens for completions in done])
        found |= dict(zip(chunk, texts, strict=True))
    return [found.get(p) for p in prompts]


def first_line(text: str) -> str:
    """What a forced answer says: the first line with something on it."""
    return next((line for line in text.splitlines() if line.strip()), "")
