"""From logits to tokens, given one uniform number per row: pure, without generator state.

A token is where the number falls in the cumulative distribution, so that the noise of a row decides
its token whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.config import GenerateConfig
from glasshouse.errors import ConfigError
from glasshouse.models.fused_ops import LARGE_VOCABULARY, split_rows

BLOCK = 256
"""Tokens per block of a large vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How completions are sampled.

    Example: `SamplingParams(max_tokens=72)`, `SamplingParams(max_tokens=72, temperature=0)` for greedy.
    """

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens whose total probability reaches this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion when they appear in it."""

    @classmethod
    def from_config(cls, config: GenerateConfig) -> SamplingParams:
        """The sampling parameters of a configuration."""
        return cls(
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p,
            stop=config.stop,
        )

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or self.top_k < 0:
            raise ConfigError(
                "generate: max_tokens must be at least 1, temperature and top_k at least 0."
            )
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ConfigError("generate: top_p must be in (0, 1] and min_p in [0, 1].")

    @property
    def is_truncated(self) -> bool:
        return bool(self.top_k) or self.top_p < 1 or self.min_p > 0


def sample_tokens(logits: Tensor, noise: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Samples tokens and their log-probabilities, `(R,)` each, from logits `(R, V)` and noise `(R,)` in
    (0, 1).

    Log-probabilities are at the sampling temperature (1 if greedy) and before truncation: those of
    the policy, with which the learner compares.
    """
    greedy = sampling.temperature == 0
    if not greedy and sampling.temperature != 1:
        logits = logits / sampling.temperature
    if not greedy and not sampling.is_truncated and logits.shape[-1] >= LARGE_VOCABULARY:
        return _sample_by_block(logits, noise)
    normaliser = logits.logsumexp(-1, keepdim=True)
    if greedy:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        probabilities = (logits - normaliser).exp_()
        if sampling.is_truncated:
            probabilities = truncate_probabilities(probabilities, sampling)
        cumulative = probabilities.cumsum(-1)
        tokens = torch.searchsorted(cumulative, noise[:, None] * cumulative[:, -1:])
        tokens.clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], (logits.gather(-1, tokens) - normaliser)[:, 0]


def _sample_by_block(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a large vocabulary, with one exponential per logit and without cumulative sums of all
    probabilities: first the block of tokens in which the number falls is found, then the token in it."""
    vocabulary = logits.shape[-1]
    if missing := -logits.shape[-1] % BLOCK:
        logits = F.pad(logits, (0, missing), value=-torch.inf)
    maxima, sums = zip(*(_sum_blocks(part) for part in split_rows(logits)), strict=True)
    maximum, ends = torch.cat(maxima), torch.cat(sums).cumsum(-1)  # (R, 1), (R, V / BLOCK)
    total = ends[:, -1:]
    position = noise[:, None] * total
    block = torch.searchsorted(ends, position).clamp_(max=ends.shape[1] - 1)  # (R, 1)
    in_block = logits.unflatten(-1, (-1, BLOCK)).gather(1, block[..., None].expand(-1, -1, BLOCK))
    inside = (in_block[:, 0] - maximum).exp_().cumsum(-1)  # (R, BLOCK)
    start = F.pad(ends, (1, 0)).gather(1, block)
    # the sums of a block may round differently: never past its last token of positive probability
    position = torch.minimum(position - start, inside[:, -1:])
    tokens = block * BLOCK + torch.searchsorted(inside, position).clamp_(max=BLOCK - 1)
    tokens.clamp_(max=vocabulary - 1)
    return tokens[:, 0], (logits.gather(-1, tokens) - maximum - total.log())[:, 0]


def _sum_blocks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row, `(R, 1)`, and the sums of `exp(logit - largest)` by block, `(R, V / BLOCK)`."""
    maximum = logits.amax(-1, keepdim=True)
    return maximum, (logits - maximum).exp_().unflatten(-1, (-1, BLOCK)).sum(-1)


def truncate_probabilities(probabilities: Tensor, sampling: SamplingParams) -> Tensor:
    """Zeroes the tokens outside top-k, then top-p, then min-p; the most likely one always stays."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        remaining = ordered * keep
        mass_before = remaining.cumsum(-1) - remaining  # of the more likely tokens
        keep &= mass_before < sampling.top_p * remaining.sum(-1, keepdim=True)
    if sampling.min_p > 0:
        keep &= ordered >= sampling.min_p * ordered[:, :1]
    keep[:, 0] = True
    return probabilities * torch.zeros_like(keep).scatter_(-1, order, keep)
