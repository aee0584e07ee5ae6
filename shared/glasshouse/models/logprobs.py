"""Log-probabilities of completions under a model, differentiable.

Only the positions that predict completion tokens get logits; those of the prompt never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import llama
from glasshouse.models.fused_ops import token_logprobs


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """R prompt-and-completion rows, padded on the right."""

    tokens: Tensor
    """(R, L)"""
    mask: Tensor
    """(R, T) true on completion tokens, false on padding; T is the longest completion."""
    rows: Tensor
    """(N,) row of each completion token."""
    predicting_positions: Tensor
    """(N,) position whose logits predict it."""
    targets: Tensor
    """(N,) the token itself."""

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> CompletionBatch:
        """Builds a batch from (prompt, completion) pairs."""
        starts = torch.tensor([len(p) for p, _ in pairs])
        lengths = torch.tensor([len(c) for _, c in pairs])
        tokens = torch.zeros(len(pairs), int((starts + lengths).max()), dtype=torch.long)
        for row, (prompt, completion) in enumerate(pairs):
            tokens[row, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        rows, offsets = mask.nonzero(as_tuple=True)
        before = starts[rows] + offsets - 1
        return cls(tokens, mask, rows, before, tokens[rows, before + 1])


def compute_logprobs(
    model: Any, batch: CompletionBatch, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """(R, T) log-probabilities, 0 on padding; with `entropy`, (R, T) entropies of the distributions."""
    if llama.is_supported(model):
        weights = llama.fuse_weights(model)
        hidden, _ = llama.forward(weights, batch.tokens)
        predicting_hidden = hidden[batch.rows, batch.predicting_positions]  # (N, D)
        if not entropy:
            chosen = token_logprobs(
                predicting_hidden, weights.head, batch.targets, temperature or 1.0
            )
            return _scatter_to_rows(batch, chosen), None
        logits = F.linear(predicting_hidden, weights.head)  # (N, V)
    else:
        all_logits = model(input_ids=batch.tokens, use_cache=False).logits  # (R, L, V)
        logits = all_logits[batch.rows, batch.predicting_positions].float()
    if temperature not in (0, 1):
        logits = logits / temperature
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, batch.targets[:, None])[:, 0] - normaliser
    entropies = None
    if entropy:
        entropies = _scatter_to_rows(batch, normaliser - (logits.softmax(-1) * logits).sum(-1))
    return _scatter_to_rows(batch, chosen), entropies


def _scatter_to_rows(batch: CompletionBatch, flat: Tensor) -> Tensor:
    return torch.zeros(batch.mask.shape).masked_scatter(batch.mask, flat)
