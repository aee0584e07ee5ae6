"""From logits to tokens, given one uniform number per row: pure, without generator state.

A token is where the number falls in the cumulative distribution, so that the noise of a row decides
its token whatever else is in the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.types import SamplingParams

BLOCK = 256
"""Tokens per block of the vocabulary."""
CACHED_LOGITS = 1 << 19
"""Logits that stay in the cache of a processor core from one operation to the next: 2 MB."""


def sample_tokens(logits: Tensor, noise: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Samples tokens and their log-probabilities, `(R,)` each, from logits `(R, V)` and noise `(R,)` in
    (0, 1).

    Log-probabilities are at the sampling temperature (1 if greedy) and before truncation: those of
    the policy, with which the learner compares.
    """
    greedy = sampling.temperature == 0
    if not greedy and sampling.temperature != 1:
        logits = logits / sampling.temperature
    if not greedy and not sampling.is_truncated:
        return _sample_by_block(logits, noise)
    normalizer = logits.logsumexp(-1, keepdim=True)
    if greedy:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        probabilities = (logits - normalizer).exp_()
        if sampling.is_truncated:
            probabilities = truncate_probabilities(probabilities, sampling)
        cumulative = probabilities.cumsum(-1)
        tokens = torch.searchsorted(cumulative, noise[:, None] * cumulative[:, -1:])
        tokens.clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], (logits.gather(-1, tokens) - normalizer)[:, 0]


def _sample_by_block(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a large vocabulary, with one exponential per logit and without cumulative sums of all
    probabilities: first the block of tokens in which the number falls is found, then the token in it."""
    vocabulary = logits.shape[-1]
    if missing := -logits.shape[-1] % BLOCK:
        logits = F.pad(logits, (0, missing), value=-torch.inf)
    rows = CACHED_LOGITS // logits.shape[-1] if logits.device.type == "cpu" else len(logits)
    parts = logits.split(max(1, rows))
    maxima, sums = zip(*map(_sum_blocks, parts), strict=True)
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
