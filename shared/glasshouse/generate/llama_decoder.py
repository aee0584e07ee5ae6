"""Decoding of the Llama family with a static cache: what all its models share, and the decoder of small ones.

Rows are arranged as a grid of G prompts × K samples. The keys of a prompt are stored once for its K samples, those of
a sample in a static cache that is written in place. With the pocket model it generates 4.3 times as fast as
transformers' `generate` (docs/benchmarks.md).

Shapes: S = G·K rows, J key-value heads, r = H / J queries per key head, P prompt length, t own
length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import llama, matmul
from glasshouse.models.llama import Cache
from glasshouse.models.shared_prefix import forward_prompts


class BaseLlamaDecoder(ABC):
    """The part of a decoder that does not depend on how its cache is arranged."""

    positions: Tensor
    """(S,) position of the next token of each row."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that of the weights, the products and the cache, by default the model's."""
        # The scale of the scores is folded into the queries once, instead of every score.
        scale = llama.unwrap_adapters(model).model.layers[0].self_attn.head_dim ** -0.5
        self.w = llama.fuse_weights(model, dtype, query_scale=scale, pack=True)
        self.cos = self.sin = torch.empty(0, device=self.w.device)
        self.groups = self.group_size = 0
        self.length = 0  # filled positions of the cache
        self.cache: Cache = []

    def step(self, tokens: Tensor) -> Tensor:
        w = self.w
        cos, sin = self.cos[self.positions][:, None], self.sin[self.positions][:, None]
        x = F.embedding(tokens, w.embed)
        for index, layer in enumerate(w.layers):
            q, k, v = llama.project_qkv(w, layer, x, cos, sin)
            x = llama.finish_block(w, layer, x, self._attend(index, q, k, v))
        self.length += 1
        self.positions = self.positions + 1
        return self._logits(F.rms_norm(x, x.shape[-1:], w.norm, w.eps))

    @abstractmethod
    def _attend(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores keys and values `(S, J, d)` of the new tokens in the cache of a layer; attention of their queries
        `(S, H, d)`, `(S, H·d)`."""

    def _start_grid(
        self, lengths: Tensor, group_size: int, max_new_tokens: int, common: int = 0
    ) -> None:
        """Prepares rows for prompts of these lengths, whose first `common` tokens need no padding."""
        longest = int(lengths.max())
        if len(self.cos) < longest + max_new_tokens:
            self.cos, self.sin = llama.rotary_tables(self.w, longest + max_new_tokens)
        padded = torch.arange(common, longest) >= lengths[:, None]  # (G, P)
        padding = torch.zeros(padded.shape).masked_fill_(padded, -torch.inf)
        self.padding = padding.to(self.w.device)
        self.positions = lengths.repeat_interleave(group_size).to(self.w.device)
        self.groups, self.group_size, self.length = len(lengths), group_size, 0

    def _new_cache(self, *shape: int) -> Cache:
        """Empty keys and values of all layers."""
        return [
            (
                torch.empty(shape, dtype=self.w.dtype, device=self.w.device),
                torch.empty(shape, dtype=self.w.dtype, device=self.w.device),
            )
            for _ in self.w.layers
        ]

    def _logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits; float32 for a bfloat16 model: sampling needs the precision."""
        logits = matmul.linear(hidden, self.w.head, onednn=self.w.large)
        return logits.float() if logits.dtype == torch.bfloat16 else logits

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the weights already have the right dtype


class LlamaDecoder(BaseLlamaDecoder):
    """The decoder of small models, whose time goes to moving activations and caches as much as to products: finished
    rows are dropped when enough of them are done."""

    DENSE_COST = 96
    """Cost of the dense layers of a row, in attended cache tokens; decides the layout in `compact`."""
    compact_when_active_below = 0.75

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        w = self.w
        self._start_grid(torch.tensor([len(p) for p in prompts]), group_size, max_new_tokens)
        last, _, self.prompt_cache = forward_prompts(w, prompts, common=0, scale=1.0)
        rows = len(prompts) * group_size
        self.cache = self._new_cache(rows, w.num_kv_heads, max_new_tokens, w.head_dim)
        return self._logits(last).repeat_interleave(group_size, 0)

    def _attend(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own, t = self.cache[index], self.length
        own[0][:, :, t] = k
        own[1][:, :, t] = v
        if self.prompt_cache:
            return self._attend_shared(q, self.prompt_cache[index], own, t + 1)
        return self._attend_unshared(q, own, t + 1)

    def _attend_shared(
        self, q: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], t: int
    ) -> Tensor:
        """Attention of one query per row over shared prompt keys and its own keys, `(S, H·d)`."""
        g, n, j = self.groups, self.group_size, self.w.num_kv_heads
        s, r, d = g * n, self.w.num_heads // j, self.w.head_dim
        p = prompt[0].shape[2]
        grouped = q.reshape(g, n, j, r, d).transpose(1, 2).reshape(g * j, n * r, d)
        to_prompt = torch.bmm(grouped, prompt[0].flatten(0, 1).mT).view(g, j, n, r, p)
        to_prompt = to_prompt + self.padding[:, None, None, None]
        to_own = torch.bmm(q.reshape(s * j, r, d), own[0].flatten(0, 1)[:, :t].mT)  # (S·J, r, t)
        # `padding` is float32, so that the prompt's scores are; the softmax then is, in any dtype
        scores = torch.cat([to_prompt.transpose(1, 2).reshape(s * j, r, p), to_own], dim=-1)
        scores = scores.softmax(-1).to(q.dtype)
        on_prompt = scores[..., :p].reshape(g, n, j, r, p).transpose(1, 2).reshape(g * j, n * r, p)
        from_prompt = torch.bmm(on_prompt, prompt[1].flatten(0, 1)).view(g, j, n, r, d)
        from_own = torch.bmm(scores[..., p:], own[1].flatten(0, 1)[:, :t]).view(s, j, r, d)
        return (from_prompt.transpose(1, 2).reshape(s, j, r, d) + from_own).reshape(s, -1)

    def _attend_unshared(self, q: Tensor, own: tuple[Tensor, Tensor], t: int) -> Tensor:
        """The same if each row holds its prompt in front of its own keys."""
        s, j = len(q), self.w.num_kv_heads
        grouped = q.reshape(s * j, self.w.num_heads // j, self.w.head_dim)
        scores = torch.bmm(grouped, own[0].flatten(0, 1)[:, :t].mT).view(s, -1, t)
        scores = (scores + self.padding[:, None, :t]).softmax(-1).to(q.dtype).view(s * j, -1, t)
        return torch.bmm(scores, own[1].flatten(0, 1)[:, :t]).reshape(s, -1)

    def compact(self, active: Tensor) -> Tensor:
        remaining = active.nonzero()[:, 0]
        if not self.prompt_cache:
            self._keep(remaining, remaining)
            return remaining
        grid = active.view(self.groups, self.group_size)
        counts = grid.sum(1)
        groups = counts.nonzero()[:, 0]
        widest, count = int(counts.max()), int(counts.sum())
        prompt_length, row_cost = self.padding.shape[1], self.DENSE_COST + self.length
        if len(groups) * (widest * row_cost + prompt_length) <= count * (row_cost + prompt_length):
            # active samples first, in order; `widest` per group, a few of them inactive
            remaining = first_rows(grid, groups, widest)
            self.prompt_cache = [(k[groups], v[groups]) for k, v in self.prompt_cache]
            self.groups, self.group_size = len(groups), widest
            self._keep(remaining, groups)
        else:  # too few samples share a prompt: copy it in front of the keys of each row
            groups = remaining // self.group_size
            self.cache = [
                (self._prepend(pk[groups], k[remaining]), self._prepend(pv[groups], v[remaining]))
                for (pk, pv), (k, v) in zip(self.prompt_cache, self.cache, strict=True)
            ]
            self.prompt_cache = []
            self.groups, self.group_size = len(remaining), 1
            self.padding = F.pad(
                self.padding[groups], (0, self.cache[0][0].shape[2] - prompt_length)
            )
            self.positions = self.positions[remaining]
            self.length += prompt_length
        return remaining

    def _keep(self, rows: Tensor, padding_rows: Tensor) -> None:
        self.padding, self.positions = self.padding[padding_rows], self.positions[rows]
        self.cache = [(self._move(k, rows), self._move(v, rows)) for k, v in self.cache]

    def _move(self, cache: Tensor, rows: Tensor) -> Tensor:
        """Moves these rows to the front of the same memory, copying only filled positions."""
        cache[: len(rows), :, : self.length] = cache[:, :, : self.length][rows]
        return cache[: len(rows)]

    def _prepend(self, prompt: Tensor, own: Tensor) -> Tensor:
        """`(S, J, P + max_new_tokens, d)`: prompt keys, filled own keys, and the free positions."""
        free = own.new_empty(*own.shape[:2], own.shape[2] - self.length, own.shape[3])
        return torch.cat([prompt, own[:, :, : self.length], free], dim=2)

    def release(self) -> None:
        self.cache, self.prompt_cache = [], []


def first_rows(grid: Tensor, groups: Tensor, count: int) -> Tensor:
    """Indices of `count` rows of each of these groups, those that are true in the grid `(G, K)` first, in order."""
    order = grid[groups].to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return (groups[:, None] * grid.shape[1] + order[:, :count]).flatten()
