"""Prompts of the Llama family, each token computed once although prompts start alike.

    common start (1, C) ──► keys and values ──┐
    rest of each prompt (G, P - C) ───────────┴► keys and values, last hidden state

The problems of a task share the system prompt and the beginning of the question. `forward_after` continues
any sequences from keys and values: the rest of the prompts, and completions during learning.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import llama
from glasshouse.models.fused_ops import embed

Cache = list[tuple[Tensor, Tensor]]
"""Rotated keys and values of each layer."""


class PromptStates(NamedTuple):
    """What completions need of G prompts."""

    last: Tensor
    """(G, D) final hidden state of the last token."""
    common: Cache
    """(1, J, C, d) of the common start; empty if C is 0."""
    rest: Cache
    """(G, J, P - C, d)"""


def count_common_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all prompts start, at most all but one of the shortest.

    Example: `count_common_tokens([(1, 2, 3), (1, 2, 4, 5)]) == 2`
    """
    if len(prompts) < 2:
        return 0
    columns = zip(*prompts, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    return min(common, min(map(len, prompts)) - 1)


def forward_prompts(
    w: llama.LlamaWeights,
    prompts: Sequence[Sequence[int]],
    common: int,
    *,
    scale: float | None = None,
    recompute: bool = False,
) -> PromptStates:
    """Computes prompts whose first `common` tokens are equal."""
    lengths = torch.tensor([len(prompt) - common for prompt in prompts])
    tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt) - common] = torch.tensor(prompt[common:])
    index = torch.arange(len(prompts), device=w.device)
    tokens, lengths = tokens.to(w.device), lengths.to(w.device)
    if not common:
        hidden, rest = llama.forward(w, tokens, return_cache=True, scale=scale, recompute=recompute)
        return PromptStates(hidden[index, lengths - 1], [], rest)
    start = torch.tensor([list(prompts[0][:common])]).to(w.device)
    _, cache = llama.forward(w, start, return_cache=True, scale=scale, recompute=recompute)

    def expand(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys.expand(len(tokens), -1, -1, -1), values.expand(len(tokens), -1, -1, -1)

    hidden, rest = forward_after(
        w, tokens, torch.full_like(lengths, common), cache, expand,
        return_cache=True, scale=scale, recompute=recompute,
    )  # fmt: skip
    return PromptStates(hidden[index, lengths - 1], cache, rest)


def forward_after(
    w: llama.LlamaWeights,
    tokens: Tensor,
    starts: Tensor,
    cache: Sequence[tuple[Tensor, ...]],
    gather: Callable[..., tuple[Tensor, Tensor]],
    *,
    return_cache: bool = False,
    scale: float | None = None,
    recompute: bool = False,
) -> tuple[Tensor, Cache]:
    """Final hidden states `(R, n, D)` of right-padded tokens `(R, n)` that follow prompts of lengths
    `starts` `(R,)`, and with `return_cache` their keys and values.

    `gather` turns the entry of a layer in `cache` into the keys and values `(R, J, p, d)` of the prompts,
    padded on the right. It is called in each layer, so that copies for all rows exist for one at a time."""
    n, p = tokens.shape[1], gather(*cache[0])[0].shape[2]
    cos, sin = llama.rotary_tables(w, int(p + n))
    positions = starts[:, None] + torch.arange(n, device=w.device)
    cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
    attention_mask = torch.zeros(len(tokens), 1, n, p + n, dtype=w.dtype, device=w.device)
    attention_mask[..., :p].masked_fill_(
        (torch.arange(p, device=w.device) >= starts[:, None])[:, None, None], -torch.inf
    )
    attention_mask[..., p:] = torch.full((n, n), -torch.inf, dtype=w.dtype, device=w.device).triu_(
        1
    )

    def run_block(
        layer: llama.LayerWeights, x: Tensor, *before: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = llama.project_qkv(w, layer, x, cos, sin)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        keys, values = gather(*before)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            torch.cat([keys, k], dim=2),
            torch.cat([values, v], dim=2),
            attn_mask=attention_mask,
            scale=scale,
            enable_gqa=w.num_heads != w.num_kv_heads,
        )
        return llama.finish_block(w, layer, x, attended.transpose(1, 2).flatten(-2)), k, v

    x = embed(tokens, w.embed, w.padding_token)
    own = []
    for layer, before in zip(w.layers, cache, strict=True):
        x, k, v = llama.run_or_recompute(run_block, layer, x, *before, recompute=recompute)
        if return_cache:
            own.append((k.contiguous(), v.contiguous()))
    return F.rms_norm(x, x.shape[-1:], w.norm, w.eps), own
