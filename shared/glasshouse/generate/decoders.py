"""Two ways to compute next-token logits with a cache: the Llama family's, and anybody's.

A decoder holds `slots`: rows that are being decoded. `prefill` fills them (prompts computed once,
however many samples each has), `step` advances all by a token, `compact` drops finished ones.

The Llama decoder keeps slots as a grid of G prompts × K samples. A prompt's keys are stored once
for its K samples, and a sample's own keys in a static cache that is written in place.

Shapes: S = G·K slots, J key heads, r = H / J queries a key head, P prompt length, t own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.errors import ConfigError
from glasshouse.models import llama


class Decoder(Protocol):
    """What the generation loop needs."""

    def prefill(self, prompts: Sequence[Sequence[int]], samples: int, room: int) -> Tensor:
        """Logits `(len(prompts) * samples, V)` for the first new token; room for `room` tokens."""

    def step(self, tokens: Tensor) -> Tensor:
        """Logits `(S, V)` after one more token in each slot."""

    def compact(self, live: Tensor) -> Tensor:
        """Drop slots that are not `live` `(S,)` bool. Returns the old numbers of the slots that
        remain, in their new order; a few dead ones may stay where dropping them would cost more."""

    def release(self) -> None:
        """Forget the slots and free their memory; the weights stay."""


class LlamaDecoder:
    """The fast path."""

    LINEAR_COST = 96
    """What a slot's dense layers cost, in cached tokens attended to: decides the layout below."""

    def __init__(self, model: Any) -> None:
        weights = llama.fuse(model)
        scale = weights.head_dim**-0.5  # folded into q once, instead of into every score
        layers = tuple(_scale_queries(layer, weights, scale) for layer in weights.layers)
        self.w = weights._replace(layers=layers)
        self.cos, self.sin = torch.empty(0), torch.empty(0)

    def prefill(self, prompts: Sequence[Sequence[int]], samples: int, room: int) -> Tensor:
        w = self.w
        lengths = torch.tensor([len(p) for p in prompts])
        longest = int(lengths.max())
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        if len(self.cos) < longest + room:
            self.cos, self.sin = llama.rotations(w, longest + room)
        hidden, self.prompt_cache = llama.forward(w, tokens, keep_cache=True, scale=1.0)
        last = hidden[torch.arange(len(prompts)), lengths - 1]

        padded = torch.arange(longest) >= lengths[:, None]  # (G, P)
        self.padding = torch.zeros(padded.shape).masked_fill_(padded, -torch.inf)
        self.groups, self.samples, self.length = len(prompts), samples, 0
        self.positions = lengths.repeat_interleave(samples)
        shape = (len(prompts) * samples, w.key_heads, room, w.head_dim)
        self.cache = [(torch.empty(shape), torch.empty(shape)) for _ in w.layers]
        return F.linear(last, w.head).repeat_interleave(samples, 0)

    def step(self, tokens: Tensor) -> Tensor:
        w, t = self.w, self.length
        cos, sin = self.cos[self.positions][:, None], self.sin[self.positions][:, None]
        x = F.embedding(tokens, w.embed)
        for number, (layer, own) in enumerate(zip(w.layers, self.cache, strict=True)):
            q, k, v = llama.attention_inputs(w, layer, x, cos, sin)
            own[0][:, :, t] = k
            own[1][:, :, t] = v
            if self.prompt_cache:
                attended = self._attend(q, self.prompt_cache[number], own, t + 1)
            else:
                attended = self._attend_alone(q, own, t + 1)
            x = llama.after_attention(w, layer, x, attended)
        self.length += 1
        self.positions = self.positions + 1
        return F.linear(F.rms_norm(x, x.shape[-1:], w.norm, w.eps), w.head)

    def _attend(
        self, q: Tensor, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], t: int
    ) -> Tensor:
        """Attention of one query a slot over its prompt's and its own keys, `(S, H·d)`."""
        g, n, j = self.groups, self.samples, self.w.key_heads
        s, r, d = g * n, self.w.heads // j, self.w.head_dim
        p = prompt[0].shape[2]
        grouped = q.reshape(g, n, j, r, d).transpose(1, 2).reshape(g * j, n * r, d)
        to_prompt = torch.bmm(grouped, prompt[0].flatten(0, 1).mT).view(g, j, n, r, p)
        to_prompt = to_prompt + self.padding[:, None, None, None]
        to_own = torch.bmm(q.reshape(s * j, r, d), own[0].flatten(0, 1)[:, :t].mT)  # (S·J, r, t)
        scores = torch.cat(
            [to_prompt.transpose(1, 2).reshape(s * j, r, p), to_own], dim=-1
        ).softmax(-1)
        on_prompt = scores[..., :p].reshape(g, n, j, r, p).transpose(1, 2).reshape(g * j, n * r, p)
        from_prompt = torch.bmm(on_prompt, prompt[1].flatten(0, 1)).view(g, j, n, r, d)
        from_own = torch.bmm(scores[..., p:], own[1].flatten(0, 1)[:, :t]).view(s, j, r, d)
        return (from_prompt.transpose(1, 2).reshape(s, j, r, d) + from_own).reshape(s, -1)

    def _attend_alone(self, q: Tensor, own: tuple[Tensor, Tensor], t: int) -> Tensor:
        """The same where each slot has its prompt in front of its own keys."""
        s, j = len(q), self.w.key_heads
        grouped = q.reshape(s * j, self.w.heads // j, self.w.head_dim)
        scores = torch.bmm(grouped, own[0].flatten(0, 1)[:, :t].mT).view(s, -1, t)
        scores = (scores + self.padding[:, None, :t]).softmax(-1).view(s * j, -1, t)
        return torch.bmm(scores, own[1].flatten(0, 1)[:, :t]).reshape(s, -1)

    def compact(self, live: Tensor) -> Tensor:
        if not self.prompt_cache:
            kept = live.nonzero()[:, 0]
            self._keep(kept, kept)
            return kept
        grid = live.view(self.groups, self.samples)
        counts = grid.sum(1)
        groups = counts.nonzero()[:, 0]
        widest, rows = int(counts.max()), int(counts.sum())
        prompt, each = self.padding.shape[1], self.LINEAR_COST + self.length
        if len(groups) * (widest * each + prompt) <= rows * (each + prompt):
            # live samples first, in order; `widest` a group, a few of them dead
            order = grid[groups].to(torch.int8).argsort(dim=1, descending=True, stable=True)
            kept = (groups[:, None] * self.samples + order[:, :widest]).flatten()
            self.prompt_cache = [(k[groups], v[groups]) for k, v in self.prompt_cache]
            self.groups, self.samples = len(groups), widest
            self._keep(kept, groups)
        else:  # too few share a prompt: it moves in front of each slot's own keys
            kept = live.nonzero()[:, 0]
            groups = kept // self.samples
            self.cache = [
                (self._join(pk[groups], k[kept]), self._join(pv[groups], v[kept]))
                for (pk, pv), (k, v) in zip(self.prompt_cache, self.cache, strict=True)
            ]
            self.prompt_cache = []
            self.groups, self.samples = len(kept), 1
            self.padding = F.pad(self.padding[groups], (0, self.cache[0][0].shape[2] - prompt))
            self.positions = self.positions[kept]
            self.length += prompt
        return kept

    def _keep(self, slots: Tensor, paddings: Tensor) -> None:
        self.padding, self.positions = self.padding[paddings], self.positions[slots]
        self.cache = [(self._move(k, slots), self._move(v, slots)) for k, v in self.cache]

    def _join(self, prompt: Tensor, own: Tensor) -> Tensor:
        """`(S, J, P + room, d)`: the prompt's keys, what is filled of the own, and the room left."""
        room = own.new_empty(*own.shape[:2], own.shape[2] - self.length, own.shape[3])
        return torch.cat([prompt, own[:, :, : self.length], room], dim=2)

    def release(self) -> None:
        self.cache, self.prompt_cache = [], []

    def _move(self, cache: Tensor, kept: Tensor) -> Tensor:
        """Kept slots to the front of the same memory; only what is filled is copied."""
        cache[: len(kept), :, : self.length] = cache[:, :, : self.length][kept]
        return cache[: len(kept)]


def _scale_queries(layer: llama.Layer, w: llama.Weights, scale: float) -> llama.Layer:
    """Queries times `scale`: in the norm's gain where they are normalised, else in the product."""
    if layer.q_norm is not None:
        return layer._replace(q_norm=layer.q_norm * scale)
    rows = torch.ones(layer.qkv.shape[0])
    rows[: w.heads * w.head_dim] = scale
    bias = None if layer.qkv_bias is None else layer.qkv_bias * rows
    return layer._replace(qkv=layer.qkv * rows[:, None], qkv_bias=bias)


class TransformersDecoder:
    """Any causal LM, through transformers' own forward and cache; prompts padded on the left."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: Any = None

    def prefill(self, prompts: Sequence[Sequence[int]], samples: int, room: int) -> Tensor:
        longest = max(len(p) for p in prompts)
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        self.mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            self.mask[row, longest - len(prompt) :] = 1
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
                f'A model of type "{self.model.config.model_type}" keeps no attention cache; '
                "Glasshouse generates with models that do."
            )
        self.cache.batch_repeat_interleave(samples)
        self.mask = self.mask.repeat_interleave(samples, 0)
        return out.logits[:, -1].float().repeat_interleave(samples, 0)

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

    def compact(self, live: Tensor) -> Tensor:
        kept = live.nonzero()[:, 0]
        self.cache.batch_select_indices(kept)
        self.mask = self.mask[kept]
        return kept

    def release(self) -> None:
        self.cache = None
