"""Computes each prompt once for all its completions during learning.

    prompts (G, P) ──► keys, values, last hidden state ──┐  detached from their graph: leaves
    completions, microbatch by microbatch ───────────────┴► gradients of their losses at the leaves
    one final backward pass through the prompts propagates these to the parameters

The sum is exactly the gradient of prompt and completion together. For the Llama family
(`llama.is_supported`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import llama
from glasshouse.models.fused_ops import token_logprobs
from glasshouse.models.logprobs import scatter_to_mask

Tokens = tuple[int, ...]


class SharedPrefixes:
    """A set of prompts, computed once and ready to be continued.

    Example:
        prefixes = SharedPrefixes(model, prompts)
        loss = compute_loss(prefixes.completion_logprobs(pairs))
        leaf_gradients = torch.autograd.grad(loss, prefixes.leaves)
        prefixes.parameter_gradients(leaf_gradients, parameters)  # add to those of the completions
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Tokens],
        *,
        dtype: torch.dtype | None = None,
        recompute: bool = False,
    ) -> None:
        """`dtype` and `recompute` as in `compute_logprobs`."""
        self.model, self.dtype, self.recompute = model, dtype, recompute
        weights = llama.fuse_weights(model, dtype)
        self.device = weights.device
        self.prompt_index = {prompt: row for row, prompt in enumerate(dict.fromkeys(prompts))}
        self.lengths = torch.tensor([len(p) for p in self.prompt_index])  # on the CPU
        tokens = torch.zeros(len(self.prompt_index), int(self.lengths.max()), dtype=torch.long)
        for prompt, row in self.prompt_index.items():
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        hidden, cache = llama.forward(
            weights, tokens.to(self.device), return_cache=True, recompute=recompute
        )
        index = torch.arange(len(self.prompt_index), device=self.device)
        last = hidden[index, self.lengths.to(self.device) - 1]  # (G, D)
        self.outputs = [last, *(tensor for pair in cache for tensor in pair)]
        self.leaves = [tensor.detach().requires_grad_() for tensor in self.outputs]

    def completion_logprobs(
        self, pairs: Sequence[tuple[Tokens, Sequence[int]]], temperature: float = 1.0
    ) -> Tensor:
        """(R, T) log-probabilities of the completions of (prompt, completion) pairs, 0 on padding."""
        rows = torch.tensor([self.prompt_index[prompt] for prompt, _ in pairs])
        lengths = torch.tensor([len(completion) for _, completion in pairs])
        tokens = torch.zeros(len(pairs), int(lengths.max()), dtype=torch.long)
        for row, (_, completion) in enumerate(pairs):
            tokens[row, : len(completion)] = torch.tensor(completion)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        starts, positions = self.lengths[rows], mask.flatten().nonzero()[:, 0]
        rows, tokens, mask, starts, positions = (
            tensor.to(self.device) for tensor in (rows, tokens, mask, starts, positions)
        )
        weights = llama.fuse_weights(self.model, self.dtype)
        last, *cache = self.leaves
        hidden = last[rows][:, None]  # the end of the prompt predicts the first token
        if tokens.shape[1] > 1:
            rest = self._continue(weights, tokens[:, :-1], rows, starts, cache)
            hidden = torch.cat([hidden, rest], dim=1)
        chosen = token_logprobs(
            hidden.flatten(0, 1)[positions], weights.head, tokens.flatten()[positions],
            temperature or 1.0,
        )  # fmt: skip
        return scatter_to_mask(mask, chosen)

    def _continue(
        self,
        w: llama.LlamaWeights,
        tokens: Tensor,
        rows: Tensor,
        starts: Tensor,
        cache: list[Tensor],
    ) -> Tensor:
        """Final hidden states `(R, n, D)` of tokens `(R, n)` that follow prompts of lengths `starts`."""
        n, p, device = tokens.shape[1], cache[0].shape[2], self.device
        cos, sin = llama.rotary_tables(w, p + n)
        positions = starts[:, None] + torch.arange(n, device=device)
        cos, sin = cos[positions][:, :, None], sin[positions][:, :, None]
        attention_mask = torch.zeros(len(rows), 1, n, p + n, dtype=w.dtype, device=device)
        attention_mask[..., :p].masked_fill_(
            (torch.arange(p, device=device) >= starts[:, None])[:, None, None], -torch.inf
        )
        attention_mask[..., p:] = torch.full(
            (n, n), -torch.inf, dtype=w.dtype, device=device
        ).triu_(1)

        def run_block(layer: llama.LayerWeights, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            q, k, v = llama.project_qkv(w, layer, x, cos, sin)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                torch.cat([keys[rows], k.transpose(1, 2)], dim=2),
                torch.cat([values[rows], v.transpose(1, 2)], dim=2),
                attn_mask=attention_mask,
                enable_gqa=w.num_heads != w.num_kv_heads,
            )
            return llama.finish_block(w, layer, x, attended.transpose(1, 2).flatten(-2))

        x = F.embedding(tokens, w.embed, w.padding_token)
        for index, layer in enumerate(w.layers):
            pair = cache[2 * index : 2 * index + 2]
            x = llama.run_or_recompute(run_block, layer, x, *pair, recompute=self.recompute)
        return F.rms_norm(x, x.shape[-1:], w.norm, w.eps)

    def parameter_gradients(
        self, leaf_gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Propagates the gradients at the leaves through the prompts to the parameters."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(self.outputs, leaf_gradients, strict=True)
            if gradient is not None
        ]
        if not pairs:
            return [None] * len(parameters)
        outputs, gradients = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, parameters, gradients, allow_unused=True)
