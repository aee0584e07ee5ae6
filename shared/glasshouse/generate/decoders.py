"""Two ways to compute next-token logits with a cache: for the Llama family, and for any causal LM.

A decoder holds `slots`: rows that are being decoded. `prefill` fills them (each prompt is computed
once, whatever the group size), `step` advances all by one token, `compact` drops finished ones.

The Llama decoder arranges slots as a grid of G prompts × K samples. The keys of a prompt are stored
once for its K samples, those of a sample in a static cache that is written in place. In large models nearly all
the time goes to products with weights, so finished slots are dropped at once. Attention is still computed for every
cell of the grid, until enough cells are empty for moving the others together.

Shapes: S = G·K slots, J key-value heads, r = H / J queries per key head, P prompt length, t own
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.errors import ConfigError
from glasshouse.models import llama
from glasshouse.models.devices import is_large
from glasshouse.models.logprobs import autocast_to
from glasshouse.models.products import multiply
from glasshouse.models.prompt_forward import count_common_tokens, forward_prompts

COMPACT_BELOW = 0.75
"""Share of active slots, or of cells of the grid that hold one, below which moving caches pays."""


class Decoder(Protocol):
    """What the generation loop needs from a model."""

    compact_below: float
    """`compact` pays when the share of active slots falls below this."""

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        """Logits `(len(prompts) * group_size, V)` for the first new token; reserves cache for
        `max_new_tokens` tokens."""

    def step(self, tokens: Tensor) -> Tensor:
        """Logits `(S, V)` after one more token in every slot."""

    def compact(self, active: Tensor) -> Tensor:
        """Drops slots that are not active, `(S,)` bool. Returns the old indices of the remaining slots
        in their new order; a few inactive ones may stay if dropping them would cost more."""

    def release(self) -> None:
        """Frees the memory of the slots; the weights stay."""

    def autocast(self) -> AbstractContextManager[Any]:
        """A context around all calls from `prefill` to `release`."""


class LlamaDecoder:
    """The fast path for models that `llama.is_supported` accepts."""

    DENSE_COST = 96
    """Cost of the dense layers of a slot, in attended cache tokens; decides the layout in `compact`."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that of the weights, the products and the cache, by default the model's."""
        # The scale of the scores is folded into the queries once, instead of every score.
        scale = llama.unwrap_adapters(model).model.layers[0].self_attn.head_dim ** -0.5
        self.w = llama.fuse_weights(model, dtype, query_scale=scale, pack=True)
        self.is_large = is_large(model)
        self.compact_below = 1.0 if self.is_large else COMPACT_BELOW
        self.cos = self.sin = torch.empty(0, device=self.w.device)

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        w = self.w
        lengths = torch.tensor([len(p) for p in prompts])
        longest = int(lengths.max())
        if len(self.cos) < longest + max_new_tokens:
            self.cos, self.sin = llama.rotary_tables(w, longest + max_new_tokens)
        padded = torch.arange(longest) >= lengths[:, None]  # (G, P)
        padding = torch.zeros(padded.shape).masked_fill_(padded, -torch.inf).to(w.device)
        positions = lengths.repeat_interleave(group_size).to(w.device)
        common = count_common_tokens(prompts) if self.is_large else 0
        last, start, rest = forward_prompts(w, prompts, common, scale=1.0)
        self.prompt_cache = [
            (_join_start(start[n][0], keys), _join_start(start[n][1], values))
            if start
            else (keys, values)
            for n, (keys, values) in enumerate(rest)
        ]
        self.padding, self.positions = padding, positions
        self.groups, self.group_size, self.length = len(prompts), group_size, 0
        self.cells: Tensor | slice = slice(None)  # of the grid, one per slot
        shape = (len(prompts) * group_size, w.num_kv_heads, max_new_tokens, w.head_dim)
        self.cache = [
            (
                torch.empty(shape, dtype=w.dtype, device=w.device),
                torch.empty(shape, dtype=w.dtype, device=w.device),
            )
            for _ in w.layers
        ]
        return _as_float(multiply(last, w.head)).repeat_interleave(group_size, 0)

    def step(self, tokens: Tensor) -> Tensor:
        w, t = self.w, self.length
        cos, sin = self.cos[self.positions][:, None], self.sin[self.positions][:, None]
        x = F.embedding(tokens, w.embed)
        for index, (layer, own) in enumerate(zip(w.layers, self.cache, strict=True)):
            q, k, v = llama.project_qkv(w, layer, x, cos, sin)
            own[0][self.cells, :, t] = k
            own[1][self.cells, :, t] = v
            if self.prompt_cache:
                q = self._fill_cells(q)
                attended = self._attend_shared(q, self.prompt_cache[index], own, t + 1)[self.cells]
            else:
                attended = self._attend_unshared(q, own, t + 1)
            x = llama.finish_block(w, layer, x, attended)
        self.length += 1
        self.positions = self.positions + 1
        return _as_float(multiply(F.rms_norm(x, x.shape[-1:], w.norm, w.eps), w.head))

    def _fill_cells(self, q: Tensor) -> Tensor:
        """Queries of all cells of the grid, 0 in empty ones."""
        if isinstance(self.cells, slice):
            return q
        return q.new_zeros(self.groups * self.group_size, *q.shape[1:]).index_copy_(
            0, self.cells, q
        )

    def _attend_shared(
        self, q: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], t: int
    ) -> Tensor:
        """Attention of one query per slot over shared prompt keys and its own keys, `(S, H·d)`."""
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
        """The same if each slot holds its prompt in front of its own keys."""
        s, j = len(q), self.w.num_kv_heads
        grouped = q.reshape(s * j, self.w.num_heads // j, self.w.head_dim)
        scores = torch.bmm(grouped, own[0].flatten(0, 1)[:, :t].mT).view(s, -1, t)
        scores = (scores + self.padding[:, None, :t]).softmax(-1).to(q.dtype).view(s * j, -1, t)
        return torch.bmm(scores, own[1].flatten(0, 1)[:, :t]).reshape(s, -1)

    def compact(self, active: Tensor) -> Tensor:
        remaining = active.nonzero()[:, 0]
        if self.is_large:
            self.cells = remaining if isinstance(self.cells, slice) else self.cells[remaining]
            self.positions = self.positions[remaining]
            self._shrink_grid(self.cells)
            return remaining
        if not self.prompt_cache:
            self._keep(remaining, remaining)
            return remaining
        grid = active.view(self.groups, self.group_size)
        counts = grid.sum(1)
        groups = counts.nonzero()[:, 0]
        widest, rows = int(counts.max()), int(counts.sum())
        prompt_length, slot_cost = self.padding.shape[1], self.DENSE_COST + self.length
        if len(groups) * (widest * slot_cost + prompt_length) <= rows * (slot_cost + prompt_length):
            # active samples first, in order; `widest` per group, a few of them inactive
            order = grid[groups].to(torch.int8).argsort(dim=1, descending=True, stable=True)
            remaining = (groups[:, None] * self.group_size + order[:, :widest]).flatten()
            self.prompt_cache = [(k[groups], v[groups]) for k, v in self.prompt_cache]
            self.groups, self.group_size = len(groups), widest
            self._keep(remaining, groups)
        else:  # too few samples share a prompt: copy it in front of the keys of each slot
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

    def _shrink_grid(self, cells: Tensor) -> None:
        """Moves these cells, the ones in use, to a smaller grid if that leaves enough others out."""
        used = torch.zeros(self.groups * self.group_size, dtype=torch.bool, device=cells.device)
        used[cells] = True
        counts = used.view(self.groups, self.group_size).sum(1)
        groups, widest = counts.nonzero()[:, 0], int(counts.max())
        if len(groups) * widest > COMPACT_BELOW * len(used):
            return
        order = used.view(self.groups, -1)[groups].to(torch.int8)
        order = order.argsort(dim=1, descending=True, stable=True)[:, :widest]  # used ones first
        kept = (groups[:, None] * self.group_size + order).flatten()
        new_index = torch.empty_like(used, dtype=torch.long)
        new_index[kept] = torch.arange(len(kept), device=kept.device)
        self.cells = new_index[cells]
        self.prompt_cache = [(k[groups], v[groups]) for k, v in self.prompt_cache]
        self.padding = self.padding[groups]
        self.cache = [(self._move(k, kept), self._move(v, kept)) for k, v in self.cache]
        self.groups, self.group_size = len(groups), widest

    def _keep(self, slots: Tensor, padding_rows: Tensor) -> None:
        self.padding, self.positions = self.padding[padding_rows], self.positions[slots]
        self.cache = [(self._move(k, slots), self._move(v, slots)) for k, v in self.cache]

    def _prepend(self, prompt: Tensor, own: Tensor) -> Tensor:
        """`(S, J, P + max_new_tokens, d)`: prompt keys, filled own keys, and the free positions."""
        free = own.new_empty(*own.shape[:2], own.shape[2] - self.length, own.shape[3])
        return torch.cat([prompt, own[:, :, : self.length], free], dim=2)

    def release(self) -> None:
        self.cache, self.prompt_cache = [], []

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the weights already have the right dtype

    def _move(self, cache: Tensor, slots: Tensor) -> Tensor:
        """Moves these slots to the front of the same memory, copying only filled positions."""
        cache[: len(slots), :, : self.length] = cache[:, :, : self.length][slots]
        return cache[: len(slots)]


def _join_start(start: Tensor, rest: Tensor) -> Tensor:
    """Keys or values of whole prompts, `(G, J, P, d)`, from those of their common start and of the rest."""
    return torch.cat([start.expand(len(rest), -1, -1, -1), rest], dim=2)


def _as_float(logits: Tensor) -> Tensor:
    """float32 logits of a bfloat16 model: sampling needs the precision."""
    return logits.float() if logits.dtype == torch.bfloat16 else logits


class TransformersDecoder:
    """Any causal LM, through transformers' forward and cache; prompts are left-padded."""

    compact_below = COMPACT_BELOW

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that of matrix products, by default the model's."""
        self.model = model
        self.dtype, self.device = dtype, next(model.parameters()).device
        self.cache: Any = None

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        longest = max(len(p) for p in prompts)
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        tokens, self.mask = tokens.to(self.device), mask.to(self.device)
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        out = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache = getattr(out, "past_key_values", None)
        if self.cache is None:
            raise ConfigError(
                f'A model of type "{self.model.config.model_type}" has no attention cache, which '
                "generation requires; set `model` to another one."
            )
        # Every kind of cache can be reordered; those of hybrid models (attention and state space) can
        # be neither repeated nor selected from.
        repeats = torch.arange(len(prompts), device=self.device).repeat_interleave(group_size)
        self.cache.reorder_cache(repeats)
        self.mask = self.mask.repeat_interleave(group_size, 0)
        return out.logits[:, -1].float().repeat_interleave(group_size, 0)

    def step(self, tokens: Tensor) -> Tensor:
        self.mask = F.pad(self.mask, (0, 1), value=1)
        out = self.model(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.mask.sum(1, keepdim=True) - 1,
            past_key_values=self.cache,
            use_cache=True,
        )
        return out.logits[:, -1].float()

    def compact(self, active: Tensor) -> Tensor:
        remaining = active.nonzero()[:, 0]
        self.cache.reorder_cache(remaining)
        self.mask = self.mask[remaining]
        return remaining

    def release(self) -> None:
        self.cache = None

    def autocast(self) -> AbstractContextManager[Any]:
        """Inside one context converted weights are cached, so they are converted once, not per token."""
        return autocast_to(self.dtype, self.device)
