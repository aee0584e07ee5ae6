"""Which samples are computed together: blocks that share prompts, and microbatches of similar lengths, as tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from glasshouse.errors import ConfigError
from glasshouse.models.logprobs import scatter_to_mask
from glasshouse.models.policy import Policy
from glasshouse.tasks.answers import split_completion


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

    The prompts of a block hold about `max_tokens` tokens or fewer, without their first `common` tokens, which are
    computed once; the number of blocks is a multiple of `multiple` where there are enough prompts.
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
    samples: Sequence[TrainingSample], max_tokens: int, *, count_prompts: bool = True
) -> list[list[TrainingSample]]:
    """Packs rows of similar length into microbatches of at most `max_tokens` tokens with padding; each is filled before
    the next one begins. Prompt tokens count too, unless prompts are computed separately."""

    def length(sample: TrainingSample) -> int:
        return len(sample.tokens) + (len(sample.prompt) if count_prompts else 0)

    microbatches: list[list[TrainingSample]] = []
    for sample in sorted(samples, key=length):  # the last row of a microbatch is its longest
        if not microbatches or (len(microbatches[-1]) + 1) * length(sample) > max_tokens:
            microbatches.append([])
        microbatches[-1].append(sample)
    return microbatches


def pad_numbers(
    mask: Tensor, rows: Sequence[Sequence[float] | np.ndarray], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Numbers per token, row after row, as a tensor `(R, T)` like the mask, 0 on padding."""
    numbers = np.concatenate([np.asarray(row, np.float64) for row in rows])
    return scatter_to_mask(mask, torch.from_numpy(numbers).to(dtype).to(mask.device))


def pad_extra(
    mask: Tensor, samples: Sequence[TrainingSample], names: Sequence[str]
) -> dict[str, Tensor]:
    """These values of `TrainingSample.extra`, (R, T), 0 on padding. Raises if a sample lacks one."""
    for name in names:
        if any(name not in sample.extra for sample in samples):
            raise ConfigError(
                f'learn.algorithm: its loss needs "{name}", a number per token, in `extra` of every '
                "training sample; one sample lacks it."
            )
    return {name: pad_numbers(mask, [sample.extra[name] for sample in samples]) for name in names}


def cot_mask(policy: Policy, completions: Sequence[Sequence[int]]) -> Tensor:
    """(R, T), true where a token starts inside the chain of thought, as split by the answer parser. Token lengths
    are measured by decoding each token alone: exact unless a token is part of a character."""
    mask = torch.zeros(len(completions), max(map(len, completions)), dtype=torch.bool)
    for row, tokens in enumerate(completions):
        answer_start = split_completion(policy.decode(tokens)).answer_start
        lengths = [len(text) for text in policy.decode_batch([[token] for token in tokens])]
        starts = [0, *itertools.accumulate(lengths)][: len(tokens)]
        mask[row, : len(tokens)] = torch.tensor([start < answer_start for start in starts])
    return mask
