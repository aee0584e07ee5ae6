"""Computes each prompt once for all its completions during learning.

    prompts (G, P) ──► keys, values, last hidden state ──┐  detached from their graph: leaves
    completions, microbatch by microbatch ───────────────┴► gradients of their losses at the leaves
    one final backward pass through the prompts propagates these to the parameters

The sum is exactly the gradient of prompt and completion together. For the Llama family
(`llama.is_supported`). In large models the common start of all prompts is computed once, too, and so are the fused
weights: they are leaves as well, and their gradients are propagated to the parameters last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glasshouse.models import llama
from glasshouse.models.devices import is_large
from glasshouse.models.fused_ops import token_logprobs
from glasshouse.models.logprobs import scatter_to_mask
from glasshouse.models.prompt_forward import count_common_tokens, forward_after, forward_prompts

Tokens = tuple[int, ...]


class SharedPrefixes:
    """A set of prompts, computed once and ready to be continued.

    Example:
        prefixes = SharedPrefixes(model, prompts)
        loss = compute_loss(prefixes.completion_logprobs(pairs))
        loss.backward()
        prefixes.parameter_gradients(parameters)  # add to those of the completions
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
        self.weights: llama.LlamaWeights | None = None
        self.fused, self.weight_leaves = list[Tensor](), list[Tensor]()
        # not in bfloat16, in which the gradients of microbatches would be added up with its low precision
        if is_large(model) and weights.dtype != torch.bfloat16 and torch.is_grad_enabled():
            weights, self.fused, self.weight_leaves = llama.detach_weights(weights)
            self.weights = weights
        self.prompt_index = {prompt: row for row, prompt in enumerate(dict.fromkeys(prompts))}
        self.lengths = torch.tensor([len(p) for p in self.prompt_index])  # on the CPU
        unique = list(self.prompt_index)
        self.common = count_common_tokens(unique) if is_large(model) else 0
        last, common, rest = forward_prompts(weights, unique, self.common, recompute=recompute)
        # of each layer: keys and values of the rest of each prompt, and of their common start
        entries: list[tuple[Tensor, ...]] = [
            (*pair, *(common[n] if common else ())) for n, pair in enumerate(rest)
        ]
        self.tensors_per_layer = len(entries[0])
        self.outputs = [last, *(tensor for entry in entries for tensor in entry)]
        self.prompt_leaves = [tensor.detach().requires_grad_() for tensor in self.outputs]
        self.leaves = [*self.prompt_leaves, *self.weight_leaves]

    def completion_logprobs(
        self, pairs: Sequence[tuple[Tokens, Sequence[int]]], temperature: float = 1.0
    ) -> Tensor:
        """(R, T) log-probabilities of the completions of (prompt, completion) pairs, 0 on padding."""
        tokens, mask, rows = pad_completions(self.prompt_index, pairs)
        starts, positions = self.lengths[rows], mask.flatten().nonzero()[:, 0]
        rows, tokens, mask, starts, positions = (
            tensor.to(self.device) for tensor in (rows, tokens, mask, starts, positions)
        )
        weights = self.weights or llama.fuse_weights(self.model, self.dtype)
        last, *cache = self.prompt_leaves
        hidden = last[rows][:, None]  # the end of the prompt predicts the first token
        if tokens.shape[1] > 1:
            hidden = torch.cat(
                [hidden, self._continue(weights, tokens[:, :-1], rows, starts, cache)], dim=1
            )
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

        def gather(keys: Tensor, values: Tensor, *common: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = keys[rows], values[rows]
            if not common:
                return keys, values
            start = [tensor.expand(len(rows), -1, -1, -1) for tensor in common]
            return torch.cat([start[0], keys], dim=2), torch.cat([start[1], values], dim=2)

        width = self.tensors_per_layer
        entries = [tuple(cache[n : n + width]) for n in range(0, len(cache), width)]
        hidden, _ = forward_after(w, tokens, starts, entries, gather, recompute=self.recompute)
        return hidden

    def parameter_gradients(self, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Propagates the gradients of the leaves (`leaf.grad`) through the prompts, and through the fused weights if
        they are leaves, to the parameters."""
        at_prompts = [leaf.grad for leaf in self.prompt_leaves]
        if not self.weights:
            return propagate(self.outputs, at_prompts, parameters)
        add_gradients(self.weight_leaves, propagate(self.outputs, at_prompts, self.weight_leaves))
        return propagate(self.fused, [leaf.grad for leaf in self.weight_leaves], parameters)


def propagate(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Gradients of the inputs from those of the outputs; None counts as zero."""
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad  # not before the first adapter
    ]
    if not pairs:
        return [None] * len(inputs)
    used, given = zip(*pairs, strict=True)
    return torch.autograd.grad(used, inputs, given, allow_unused=True)


def add_gradients(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Adds gradients to `tensor.grad`; None counts as zero."""
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if gradient is not None:
            tensor.grad = gradient if tensor.grad is None else tensor.grad.add_(gradient)


def pad_completions(
    prompt_index: Mapping[Tokens, int], pairs: Sequence[tuple[Tokens, Sequence[int]]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and mask, (R, T), of the completions of (prompt, completion) pairs, and the index of each prompt."""
    rows = torch.tensor([prompt_index[prompt] for prompt, _ in pairs])
    lengths = torch.tensor([len(completion) for _, completion in pairs])
    tokens = torch.zeros(len(pairs), int(lengths.max()), dtype=torch.long)
    for row, (_, completion) in enumerate(pairs):
        tokens[row, : len(completion)] = torch.tensor(completion)
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None], rows
