"""Log-probabilities of completions under a model: what a learner differentiates.

Only the positions that predict a completion's tokens get logits; the prompt's never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import llama
from glasshouse.models.fused_ops import chosen_logprobs


@dataclass(frozen=True, slots=True)
class Batch:
    """R prompt-and-completion rows, padded on the right."""

    tokens: Tensor
    """(R, L)"""
    mask: Tensor
    """(R, T) true where a completion token is real; T is the longest completion."""
    rows: Tensor
    """(N,) for each completion token, its row,"""
    before: Tensor
    """(N,) the position that predicts it,"""
    targets: Tensor
    """(N,) and the token itself."""

    @classmethod
    def of(cls, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
        """From (prompt, completion) pairs."""
        starts = torch.tensor([len(p) for p, _ in pairs])
        lengths = torch.tensor([len(c) for _, c in pairs])
        tokens = torch.zeros(len(pairs), int((starts + lengths).max()), dtype=torch.long)
        for row, (prompt, completion) in enumerate(pairs):
            tokens[row, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        rows, places = mask.nonzero(as_tuple=True)
        before = starts[rows] + places - 1
        return cls(tokens, mask, rows, before, tokens[rows, before + 1])


def logprobs(
    model: Any, batch: Batch, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """(R, T) log-probabilities, 0 on padding; if asked, (R, T) entropies of the distributions."""
    if llama.supported(model):
        weights = llama.fuse(model)
        hidden, _ = llama.forward(weights, batch.tokens)
        predicting = hidden[batch.rows, batch.before]  # (N, D)
        if not entropy:
            chosen = chosen_logprobs(predicting, weights.head, batch.targets, temperature or 1.0)
            return _padded(batch, chosen), None
        logits = F.linear(predicting, weights.head)  # (N, V)
    else:
        everywhere = model(input_ids=batch.tokens, use_cache=False).logits  # (R, L, V)
        logits = everywhere[batch.rows, batch.before].float()
    if temperature not in (0, 1):
        logits = logits / temperature
    normaliser = logits.logsumexp(-1)
    chosen = logits.gather(-1, batch.targets[:, None])[:, 0] - normaliser
    spread = None
    if entropy:
        spread = _padded(batch, normaliser - (logits.softmax(-1) * logits).sum(-1))
    return _padded(batch, chosen), spread


def _padded(batch: Batch, flat: Tensor) -> Tensor:
    return torch.zeros(batch.mask.shape).masked_scatter(batch.mask, flat)
