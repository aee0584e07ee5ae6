"""Prompts computed once for all their completions, in learning too.

    prompts (G, P) ──► keys, values, last hidden ──┐  cut off from their graph: leaves
    completions, micro-batch by micro-batch ───────┴► their losses' gradients at the leaves
    in the end one backward pass through the prompts takes these in

The sum is exactly the gradient of prompt and completion together; a group's prompt is just not
computed once for each of its samples. For the Llama family (`llama.supported`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import llama
from glasshouse.models.fused_ops import chosen_logprobs

Tokens = tuple[int, ...]


class Prefixes:
    """A set of prompts, ready to be continued.

    Example:
        prefixes = Prefixes(model, prompts)
        loss = loss_of(prefixes.logprobs(pairs))
        arrived = torch.autograd.grad(loss, prefixes.leaves)
        prefixes.gradients(arrived, parameters)  # beside the gradients that completions have of their own
    """

    def __init__(self, model: Any, prompts: Sequence[Tokens]) -> None:
        self.model = model
        self.numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        self.lengths = torch.tensor([len(p) for p in self.numbers])
        tokens = torch.zeros(len(self.numbers), int(self.lengths.max()), dtype=torch.long)
        for prompt, number in self.numbers.items():
            tokens[number, : len(prompt)] = torch.tensor(prompt)
        hidden, cache = llama.forward(llama.fuse(model), tokens, keep_cache=True)
        last = hidden[torch.arange(len(self.numbers)), self.lengths - 1]  # (G, D)
        self.computed = [last, *(tensor for pair in cache for tensor in pair)]
        self.leaves = [tensor.detach().requires_grad_() for tensor in self.computed]

    def logprobs(
        self, pairs: Sequence[tuple[Tokens, Sequence[int]]], temperature: float = 1.0
    ) -> Tensor:
        """(R, T) log-probabilities of the completions of (prompt, completion) pairs, 0 on padding."""
        rows = torch.tensor([self.numbers[prompt] for prompt, _ in pairs])
        lengths = torch.tensor([len(completion) for _, completion in pairs])
        tokens = torch.zeros(len(pairs), int(lengths.max()), dtype=torch.long)
        for row, (_, completion) in enumerate(pairs):
            tokens[row, : len(completion)] = torch.tensor(completion)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        weights = llama.fuse(self.model)
        last, *cache = self.leaves
        hidden = last[rows][:, None]  # the prompt's end predicts the first token
        if tokens.shape[1] > 1:
            rest = self._continue(weights, tokens[:, :-1], rows, cache)
            hidden = torch.cat([hidden, rest], dim=1)
        chosen = chosen_logprobs(hidden[mask], weights.head, tokens[mask], temperature or 1.0)
        return torch.zeros(mask.shape).masked_scatter(mask, chosen)

    def _continue(
        self, w: llama.Weights, tokens: Tensor, rows: Tensor, cache: list[Tensor]
    ) -> Tensor:
        """Final hidden states `(R, n, D)` of tokens `(R, n)` that follow their prompts."""
        n, p, starts = tokens.shape[1], cache[0].shape[2], self.lengths[rows]
        cos, sin = llama.rotations(w, int(starts.max()) + n)
        places = starts[:, None] + torch.arange(n)
        cos, sin = cos[places][:, :, None], sin[places][:, :, None]
        seen = torch.zeros(len(rows), 1, n, p + n)
        seen[..., :p].masked_fill_((torch.arange(p) >= starts[:, None])[:, None, None], -torch.inf)
        seen[..., p:] = torch.full((n, n), -torch.inf).triu_(1)
        x = F.embedding(tokens, w.embed, w.padding)
        for number, layer in enumerate(w.layers):
            q, k, v = llama.attention_inputs(w, layer, x, cos, sin)
            keys = torch.cat([cache[2 * number][rows], k.transpose(1, 2)], dim=2)
            values = torch.cat([cache[2 * number + 1][rows], v.transpose(1, 2)], dim=2)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=seen, enable_gqa=w.heads != w.key_heads
            )
            x = llama.after_attention(w, layer, x, attended.transpose(1, 2).flatten(-2))
        return F.rms_norm(x, x.shape[-1:], w.norm, w.eps)

    def gradients(
        self, arrived: Sequence[Tensor | None], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """What the completions' losses left at the leaves, carried on into the parameters."""
        reached = [
            (tensor, gradient)
            for tensor, gradient in zip(self.computed, arrived, strict=True)
            if gradient is not None
        ]
        if not reached:
            return [None] * len(parameters)
        tensors, gradients = zip(*reached, strict=True)
        return torch.autograd.grad(tensors, parameters, gradients, allow_unused=True)
