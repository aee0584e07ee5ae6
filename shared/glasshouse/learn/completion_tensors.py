"""Per-token values of the completions of a microbatch as padded tensors `(R, T)`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from glasshouse.errors import ConfigError
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.logprobs import CompletionBatch
from glasshouse.models.policy import Policy
from glasshouse.tasks.answers.extraction import split_completion


def pad_sampler_logprobs(batch: CompletionBatch, samples: Sequence[TrainingSample]) -> torch.Tensor:
    """The sampler's log-probabilities, (R, T), 0 on padding."""
    return pad_numbers(batch, [sample.sampler_logprobs for sample in samples])


def pad_extra(
    batch: CompletionBatch, samples: Sequence[TrainingSample], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """These values of `TrainingSample.extra`, (R, T), 0 on padding. Raises if a sample lacks one."""
    missing = [name for name in names if any(name not in sample.extra for sample in samples)]
    if missing:
        raise ConfigError(
            f'learn.algorithm: its loss needs "{missing[0]}", a number per token, in `extra` of every '
            "training sample; one sample lacks it."
        )
    return {name: pad_numbers(batch, [sample.extra[name] for sample in samples]) for name in names}


def pad_numbers(batch: CompletionBatch, rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """(R, T), 0 on padding."""
    values = torch.zeros(batch.mask.shape)
    for row, numbers in enumerate(rows):
        values[row, : len(numbers)] = torch.tensor(numbers)
    return values.to(batch.mask.device)


def cot_mask(policy: Policy, completions: Sequence[Sequence[int]]) -> torch.Tensor:
    """(R, T), true where a token starts inside the chain of thought, as split by the answer parser.

    Token lengths are measured by decoding each token alone: exact unless a token is part of a
    character.
    """
    mask = torch.zeros(len(completions), max(map(len, completions)), dtype=torch.bool)
    for row, tokens in enumerate(completions):
        answer_start = split_completion(policy.decode(tokens)).answer_start
        lengths = [len(text) for text in policy.decode_batch([[token] for token in tokens])]
        starts = itertools.accumulate(lengths, initial=0)
        in_cot = [start < answer_start for start, _ in zip(starts, tokens, strict=False)]
        mask[row, : len(tokens)] = torch.tensor(in_cot)
    return mask
