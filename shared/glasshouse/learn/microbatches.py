"""Which samples are computed together: blocks that share prompts, and microbatches of similar lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MICROBATCH_COST = 64
"""What a microbatch of a large model costs apart from its tokens (adding its gradients to those before, combining
weights), in tokens that could be computed in that time: an estimate from one profile of SmolLM2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One completion, as the learner needs it."""

    prompt: tuple[int, ...]
    tokens: Sequence[int]
    sampler_logprobs: Sequence[float]
    """Log-probability of each token under the policy version that sampled it."""
    advantage: float
    extra: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What a loss needs besides, by name: a number per token (`Algorithm.inputs`)."""

    def __post_init__(self) -> None:
        for name, numbers in self.extra.items():
            if len(numbers) != len(self.tokens):
                raise ValueError(f"{name}: {len(numbers)} numbers for {len(self.tokens)} tokens.")


def split_into_blocks(
    samples: Sequence[TrainingSample], max_tokens: int, multiple: int = 1, common: int = 0
) -> list[list[TrainingSample]]:
    """Groups samples by prompt, in order, and splits the groups into blocks of about equal size.

    The prompts of a block hold about `max_tokens` tokens or fewer, without their first `common` tokens,
    which are computed once; the number of blocks is a multiple of `multiple` where there are enough
    prompts.
    """
    by_prompt: dict[tuple[int, ...], list[TrainingSample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    groups = list(by_prompt.values())
    prompt_tokens = sum(len(prompt) - common for prompt in by_prompt)
    rounds = math.ceil(prompt_tokens / (max_tokens * multiple))
    count = min(len(groups), rounds * multiple)
    bounds = [index * len(groups) // count for index in range(count + 1)]
    return [[s for g in groups[start:end] for s in g] for start, end in itertools.pairwise(bounds)]


def pack_microbatches(
    samples: Sequence[TrainingSample],
    max_tokens: int,
    *,
    count_prompts: bool = True,
    least_padding: bool = False,
) -> list[list[TrainingSample]]:
    """Packs rows of similar length into microbatches of at most `max_tokens` tokens with padding.

    Prompt tokens count too, unless prompts are computed separately. By default each microbatch is filled
    before the next one begins; with `least_padding` they are divided where that costs least, which pays
    for large models.
    """

    def length(sample: TrainingSample) -> int:
        return len(sample.tokens) + (len(sample.prompt) if count_prompts else 0)

    ordered = sorted(samples, key=length)
    split = split_at_least_cost if least_padding else fill_in_order
    bounds = split([length(sample) for sample in ordered], max_tokens)
    return [ordered[start:end] for start, end in itertools.pairwise(bounds)]


def fill_in_order(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Where microbatches begin, and the end of the last: each takes as many rows as fit.

    Example: `fill_in_order([2, 2, 8, 8], max_tokens=16) == [0, 2, 4]`
    """
    bounds = [0]
    for end, longest in enumerate(lengths):
        if end > bounds[-1] and (end + 1 - bounds[-1]) * longest > max_tokens:
            bounds.append(end)
    return [*bounds, len(lengths)] if lengths else bounds


def split_at_least_cost(
    lengths: Sequence[int], max_tokens: int, cost: int = MICROBATCH_COST
) -> list[int]:
    """Where microbatches begin, and the end of the last, so that the sum of their tokens with padding and of `cost`
    for each is smallest. `lengths` are in ascending order.

    Example: `split_at_least_cost([1, 1, 8, 8], max_tokens=32, cost=10) == [0, 2, 4]`
    """
    best, starts = (
        [0],
        [0],
    )  # for the first `end` rows: the least cost, and where the last microbatch begins
    for end, longest in enumerate(lengths, start=1):
        most_rows = max(1, max_tokens // max(1, longest))
        best_cost, start = min(
            (best[start] + (end - start) * longest + cost, start)
            for start in range(max(0, end - most_rows), end)
        )
        best.append(best_cost)
        starts.append(start)
    bounds = [len(lengths)]
    while bounds[-1]:
        bounds.append(starts[bounds[-1]])
    return bounds[::-1]
