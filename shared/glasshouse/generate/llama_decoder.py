"""Decoding of the Llama family with a static cache. Large models spend nearly all their time on products with weights.

So a finished row is dropped at once. The caches keep a grid of G prompts × K samples, and attention is computed for
every row of the grid, until enough of them are empty for moving the others together. With oneDNN's products this took
a step of SmolLM2 from 4.4 to 5.6 times TRL's speed (docs/benchmarks.md; the two count different steps).

    keys of:   the common start of all prompts │ the rest of each prompt │ the sample
    stored:    once                            │ once per prompt         │ once per row
    product:   J of S·r queries                │ J·G of K·r queries      │ J·S of r queries

The scores of the three products lie side by side, `(J, S, r, C + P + t)`: queries and caches have the key-value head as
their first dimension, so that no scores are transposed.

Shapes: S = G·K rows of the grid, J key-value heads, r = H / J queries per key head, C tokens of the common start, P of
the rest of a prompt, t of the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.models import llama
from glasshouse.models.linear import linear
from glasshouse.models.llama import Cache
from glasshouse.models.shared_prefix import forward_prompts

SHRINK_BELOW = 0.75
"""Share of the rows of the grid, if it were smaller, below which moving the caches pays."""


class LlamaDecoder:
    """The decoder of the Llama family."""

    compact_when_active_below = 1.0
    positions: Tensor
    """(S,) position of the next token of each row."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that of the weights, the products and the cache, by default the model's."""
        self.w = llama.read_weights(model, dtype, pack=True)
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

    def _logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits; float32 for a bfloat16 model: sampling needs the precision."""
        logits = linear(hidden, self.w.head)
        return logits.float() if logits.dtype == torch.bfloat16 else logits

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the weights already have the right dtype

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        w = self.w
        lengths, common = torch.tensor([len(p) for p in prompts]), count_common_tokens(prompts)
        longest = int(lengths.max())
        if len(self.cos) < longest + max_new_tokens:
            self.cos, self.sin = llama.rotary_tables(w, longest + max_new_tokens)
        padded = (
            torch.arange(common, longest) >= lengths[:, None]
        )  # (G, P); the start has no padding
        self.padding = torch.zeros(padded.shape).masked_fill_(padded, -torch.inf).to(w.device)
        self.positions = lengths.repeat_interleave(group_size).to(w.device)
        self.groups, self.group_size, self.length = len(prompts), group_size, 0
        last, start, rest = forward_prompts(w, prompts, common)
        empty = rest[0][0].new_empty(w.num_kv_heads, 0, w.head_dim)
        self.shared_prefix_cache: Cache = [(k[0], v[0]) for k, v in start] or [
            (empty, empty) for _ in rest
        ]
        self.prompt_cache: Cache = [
            (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()) for k, v in rest
        ]
        shape = (w.num_kv_heads, len(prompts) * group_size, max_new_tokens, w.head_dim)
        self.cache = [(empty.new_empty(shape), empty.new_empty(shape)) for _ in rest]
        self.grid_rows: Tensor | slice = slice(None)  # of each row that is decoded
        return self._logits(last).repeat_interleave(group_size, 0)

    def _attend(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores keys and values `(S, J, d)` of the new tokens in the cache of a layer; attention of their queries
        `(S, H, d)`, `(S, H·d)`."""
        keys, values = self.cache[index]
        keys[:, self.grid_rows, self.length] = k.transpose(0, 1)
        values[:, self.grid_rows, self.length] = v.transpose(0, 1)
        filled = slice(self.length + 1)
        heads, dim = self.w.num_kv_heads, self.w.head_dim
        rows = self.groups * self.group_size
        rest_keys, rest_values = self.prompt_cache[index]
        parts = [  # number of products, keys and values of each of them
            (heads, *self.shared_prefix_cache[index]),
            (heads * self.groups, rest_keys.flatten(0, 1), rest_values.flatten(0, 1)),
            (heads * rows, keys.flatten(0, 1)[:, filled], values.flatten(0, 1)[:, filled]),
        ]
        q = self._fill_grid(
            (q * dim**-0.5).unflatten(1, (heads, -1)).transpose(0, 1)
        )  # (J, S, r, d)
        queries = q[0].numel() // dim  # S·r
        start, rest, own = (
            torch.bmm(q.view(count, -1, dim), part.mT).view(heads, queries, part.shape[1])
            for count, part, _ in parts
        )
        rest = (rest.unflatten(1, (self.groups, -1)) + self.padding[:, None]).flatten(1, 2)
        # `padding` is float32, so that the scores are; the softmax then is, in any dtype
        scores = torch.cat([start, rest, own], dim=-1).softmax(-1).to(q.dtype)
        columns = scores.split([part.shape[1] for _, part, _ in parts], dim=-1)
        attended = torch.zeros_like(q)
        for (count, _, part), weights in zip(parts, columns, strict=True):
            weights = weights.view(count, heads * queries // count, part.shape[1])
            attended.view(count, -1, dim).baddbmm_(weights, part)
        return attended.view(heads, rows, -1)[:, self.grid_rows].transpose(0, 1).flatten(1)

    def _fill_grid(self, q: Tensor) -> Tensor:
        """Queries `(J, S, r, d)` of all rows of the grid, 0 in empty ones."""
        if isinstance(self.grid_rows, slice):
            return q.contiguous()
        filled = q.new_zeros(len(q), self.groups * self.group_size, *q.shape[2:])
        return filled.index_copy_(1, self.grid_rows, q)

    def compact(self, active: Tensor) -> Tensor:
        remaining = active.nonzero()[:, 0]
        self.grid_rows = (
            remaining if isinstance(self.grid_rows, slice) else self.grid_rows[remaining]
        )
        self.positions = self.positions[remaining]
        self._shrink_grid(self.grid_rows)
        return remaining

    def _shrink_grid(self, rows: Tensor) -> None:
        """Moves these rows, the ones in use, to a smaller grid if that leaves enough others out."""
        used = torch.zeros(self.groups * self.group_size, dtype=torch.bool, device=rows.device)
        used[rows] = True
        grid = used.view(self.groups, self.group_size)
        counts = grid.sum(1)
        groups, widest = counts.nonzero()[:, 0], int(counts.max())
        if len(groups) * widest > SHRINK_BELOW * len(used):
            return
        order = grid[groups].to(torch.int8).argsort(dim=1, descending=True, stable=True)
        kept = (
            groups[:, None] * self.group_size + order[:, :widest]
        ).flatten()  # those in use first
        new_index = torch.empty_like(used, dtype=torch.long)
        new_index[kept] = torch.arange(len(kept), device=kept.device)
        self.grid_rows = new_index[rows]
        self.prompt_cache = [(k[:, groups], v[:, groups]) for k, v in self.prompt_cache]
        self.padding = self.padding[groups]
        self.cache = [(self._move(k, kept), self._move(v, kept)) for k, v in self.cache]
        self.groups, self.group_size = len(groups), widest

    def _move(self, cache: Tensor, rows: Tensor) -> Tensor:
        """These rows of a cache `(J, S, …)` in the first part of its memory, copying only filled positions."""
        filled = cache[:, rows, : self.length]
        shape = (len(cache), len(rows), *cache.shape[2:])
        moved = cache.flatten()[: torch.Size(shape).numel()].view(shape)
        moved[:, :, : self.length] = filled
        return moved

    def release(self) -> None:
        self.cache, self.shared_prefix_cache, self.prompt_cache = [], [], []
