"""Per-token values of the completions of a microbatch as padded tensors `(R, T)`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.logprobs import CompletionBatch
from glasshouse.models.policy import Policy
from glasshouse.tasks.answers.extraction import split_completion


def pad_sampler_logprobs(batch: CompletionBatch, samples: Sequence[TrainingSample]) -> torch.Tensor:
    """The sampler's log-probabilities, (R, T), 0 on padding."""
    values = torch.zeros(batch.mask.shape)
    for row, sample in enumerate(samples):
        values[row, : len(sample.sampler_logprobs)] = torch.tensor(sample.sampler_logprobs)
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
