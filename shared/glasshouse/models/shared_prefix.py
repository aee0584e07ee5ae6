"""Prompts of the Llama family, each token computed once: for all completions, and although prompts start alike.

    common start (1, C) ──► keys and values ──┐
    rest of each prompt (G, P - C) ───────────┴► keys and values, last hidden state

`forward_prompts` serves the decoders. `SharedPrefixes` adds gradients, for learning:

    prompts ──► keys, values, last hidden state ─────────┐  detached from their graph: leaves
    completions, microbatch by microbatch ───────────────┴► gradients of their losses at the leaves
    one final backward pass through the prompts propagates these to the parameters

The sum is exactly the gradient of prompt and completion together. The common start of all prompts is computed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.models import llama
from glasshouse.models.llama import Cache, Past
from glasshouse.models.logprobs import pad_rows, scatter_to_mask, token_logprobs

Tokens = tuple[int, ...]


class PromptStates(NamedTuple):
    """What completions need of G prompts."""

    last: Tensor
    """(G, D) final hidden state of the last token."""
    common: Cache
    """(1, J, C, d) of the common start; empty if C is 0."""
    rest: Cache
    """(G, J, P - C, d)"""


def forward_prompts(
    w: llama.LlamaWeights, prompts: Sequence[Sequence[int]], common: int, *, recompute: bool = False
) -> PromptStates:
    """Computes prompts whose first `common` tokens are equal."""
    tokens, lengths = (t.to(w.device) for t in pad_rows([prompt[common:] for prompt in prompts]))
    past, start = None, Cache()
    if common:
        first = torch.tensor([list(prompts[0][:common])]).to(w.device)
        _, start = llama.forward(w, first, return_cache=True, recompute=recompute)

        def expand(*start: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = (tensor.expand(len(tokens), -1, -1, -1) for tensor in start)
            return keys, values

        past = Past(torch.full_like(lengths, common), start, expand)
    hidden, rest = llama.forward(w, tokens, past, return_cache=True, recompute=recompute)
    index = torch.arange(len(prompts), device=w.device)
    return PromptStates(hidden[index, lengths - 1], start, rest)


class SharedPrefixes:
    """A set of prompts, computed once and ready to be continued.

    Example:
        prefixes = SharedPrefixes(model, prompts)
        for pairs in microbatches:
            prefixes.backward(compute_loss(prefixes.completion_logprobs(pairs)))
        gradients = prefixes.parameter_gradients()
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
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        weights = llama.read_weights(model, dtype)
        self.device = weights.device
        unique = list(dict.fromkeys(prompts))
        self.prompt_index = {prompt: row for row, prompt in enumerate(unique)}
        self.lengths = torch.tensor([len(p) for p in unique])  # on the CPU
        self.common = count_common_tokens(unique)
        last, common, rest = forward_prompts(weights, unique, self.common, recompute=recompute)
        # of each layer: keys and values of the rest of each prompt, and of their common start
        entries = [(*pair, *(common[n] if common else ())) for n, pair in enumerate(rest)]
        self.tensors_per_layer = len(entries[0])
        self.outputs = [last, *itertools.chain.from_iterable(entries)]
        self.prompt_leaves = [tensor.detach().requires_grad_() for tensor in self.outputs]

    def completion_logprobs(
        self, pairs: Sequence[tuple[Tokens, Sequence[int]]], temperature: float = 1.0
    ) -> Tensor:
        """(R, T) log-probabilities of the completions of (prompt, completion) pairs, 0 on padding."""
        tokens, lengths = pad_rows([completion for _, completion in pairs])
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        rows = torch.tensor([self.prompt_index[prompt] for prompt, _ in pairs])
        starts, positions = self.lengths[rows], mask.flatten().nonzero()[:, 0]
        rows, tokens, mask, starts, positions = (
            tensor.to(self.device) for tensor in (rows, tokens, mask, starts, positions)
        )
        weights = llama.read_weights(self.model, self.dtype)  # of a graph of its own
        hidden = self.prompt_leaves[0][rows][:, None]  # the prompt's end predicts the first token
        if tokens.shape[1] > 1:
            past = Past(starts, self._cache_entries(), self._select_rows(rows))
            after, _ = llama.forward(weights, tokens[:, :-1], past, recompute=self.recompute)
            hidden = torch.cat([hidden, after], dim=1)
        chosen = token_logprobs(
            hidden.flatten(0, 1)[positions],
            weights.head,
            tokens.flatten()[positions],
            temperature or 1.0,
        )
        return scatter_to_mask(mask, chosen)

    def _cache_entries(self) -> list[tuple[Tensor, ...]]:
        cache, width = self.prompt_leaves[1:], self.tensors_per_layer
        return [tuple(cache[n : n + width]) for n in range(0, len(cache), width)]

    @staticmethod
    def _select_rows(rows: Tensor) -> Any:
        """`Past.gather` for completions of these prompts."""

        def gather(keys: Tensor, values: Tensor, *common: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = keys[rows], values[rows]
            if not common:
                return keys, values
            start = [tensor.expand(len(rows), -1, -1, -1) for tensor in common]
            return torch.cat([start[0], keys], dim=2), torch.cat([start[1], values], dim=2)

        return gather

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of the loss of a microbatch to the leaves and to the parameters."""
        loss.backward(inputs=[*self.prompt_leaves, *self.parameters])

    def parameter_gradients(self) -> list[Tensor | None]:
        """The sums of the gradients of all microbatches, those that reach the parameters through the prompts
        included; `grad` of the parameters is None again."""
        pairs = [
            (output, leaf.grad)
            for output, leaf in zip(self.outputs, self.prompt_leaves, strict=True)
            if leaf.grad is not None and output.requires_grad  # not before the first adapter
        ]
        if pairs:
            outputs, given = zip(*pairs, strict=True)
            torch.autograd.backward(outputs, given, inputs=self.parameters)
        gradients = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return gradients
