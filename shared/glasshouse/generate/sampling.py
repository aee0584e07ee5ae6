"""From logits to a token, given one uniform number a row: pure, no generator state.

A token is where the number falls in the cumulative distribution, so that a row's noise decides
its token whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glasshouse.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are drawn.

    Example: `Sampling(max_tokens=72)`, `Sampling(max_tokens=72, temperature=0)` for greedy.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the likeliest tokens that together reach this probability."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest one."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion once they appear in it."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or self.top_k < 0:
            raise ConfigError("Sampling needs max_tokens >= 1, temperature >= 0 and top_k >= 0.")
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ConfigError("Sampling needs 0 < top_p <= 1 and 0 <= min_p <= 1.")

    @property
    def truncates(self) -> bool:
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0


def pick(logits: Tensor, noise: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities, `(R,)` each: logits `(R, V)`, noise `(R,)` in (0, 1).

    Log-probabilities are at the sampling temperature (1 when greedy) and before truncation: they
    are the policy's, which is what a learner compares with.
    """
    greedy = sampling.temperature == 0
    if not greedy and sampling.temperature != 1:
        logits = logits / sampling.temperature
    normaliser = logits.logsumexp(-1, keepdim=True)
    if greedy:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        probabilities = (logits - normaliser).exp_()
        if sampling.truncates:
            probabilities = truncate(probabilities, sampling)
        cumulative = probabilities.cumsum(-1)
        tokens = torch.searchsorted(cumulative, noise[:, None] * cumulative[:, -1:])
        tokens.clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], (logits.gather(-1, tokens) - normaliser)[:, 0]


def truncate(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """Zero the tokens that top-k, then top-p, then min-p leave out; the likeliest always stays."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        kept = ordered * keep
        before = kept.cumsum(-1) - kept  # mass of the likelier ones
        keep &= before < sampling.top_p * kept.sum(-1, keepdim=True)
    if sampling.min_p > 0:
        keep &= ordered >= sampling.min_p * ordered[:, :1]
    keep[:, 0] = True
    return probabilities * torch.zeros_like(keep).scatter_(-1, order, keep)
