"""Log-probabilities of completions under a model, differentiable.

Only the positions that predict completion tokens get logits; those of the prompt never do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from glasshouse.errors import ConfigError
from glasshouse.models import llama
from glasshouse.models.linear import linear

CACHED_LOGITS = 1 << 19
"""Logits that stay in the cache of a processor core from one operation to the next: 2 MB."""


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens `(R, L)`, padded on the right with 0, and their lengths `(R,)`, on the CPU."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens, lengths


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """R prompt-and-completion rows, padded on the right."""

    tokens: Tensor
    """(R, L)"""
    mask: Tensor
    """(R, T) true on completion tokens, false on padding; T is the longest completion."""
    rows: Tensor
    """(N,) row of each completion token."""
    predicting_positions: Tensor
    """(N,) position whose logits predict it."""
    targets: Tensor
    """(N,) the token itself."""

    @classmethod
    def from_pairs(
        cls,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        device: torch.device | str = "cpu",
    ) -> CompletionBatch:
        """Builds a batch from (prompt, completion) pairs, on the CPU, and moves it to the device."""
        starts = torch.tensor([len(p) for p, _ in pairs])
        lengths = torch.tensor([len(c) for _, c in pairs])
        tokens, _ = pad_rows([[*prompt, *completion] for prompt, completion in pairs])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        rows, offsets = mask.nonzero(as_tuple=True)
        before = starts[rows] + offsets - 1
        parts = (tokens, mask, rows, before, tokens[rows, before + 1])
        return cls(*(part.to(device, non_blocking=True) for part in parts))


def compute_logprobs(
    model: Any,
    batch: CompletionBatch,
    temperature: float = 1.0,
    entropy: bool = False,
    *,
    dtype: torch.dtype | None = None,
    recompute: bool = False,
    transformers_forward: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(R, T) log-probabilities, 0 on padding; with `entropy`, (R, T) entropies of the distributions.

    `dtype` is what matrix products are computed in, by default that of the weights; the results are
    float32 for bfloat16. `recompute`: activation checkpointing. Outside the Llama family, and with
    `transformers_forward`, by transformers' own forward pass."""
    if transformers_forward or not llama.is_supported(model):
        with autocast_to(dtype, batch.tokens.device), recompute_layers(model, recompute):
            logits = _predicting_logits(model, batch).float()
        return _logprobs_of_logits(batch, logits, temperature, entropy)
    weights = llama.read_weights(model, dtype)
    hidden, _ = llama.forward(weights, batch.tokens, recompute=recompute)
    predicting_hidden = hidden[batch.rows, batch.predicting_positions]  # (N, D)
    if not entropy:
        chosen = token_logprobs(predicting_hidden, weights.head, batch.targets, temperature or 1.0)
        return scatter_to_mask(batch.mask, chosen), None
    logits = F.linear(predicting_hidden, weights.head)  # (N, V)
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return _logprobs_of_logits(batch, logits, temperature, entropy)


def _logprobs_of_logits(
    batch: CompletionBatch, logits: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    if temperature not in (0, 1):
        logits = logits / temperature
    normalizer = logits.logsumexp(-1)
    chosen = logits.gather(-1, batch.targets[:, None])[:, 0] - normalizer
    entropies = None
    if entropy:
        terms = normalizer - (logits.softmax(-1) * logits).sum(-1)
        entropies = scatter_to_mask(batch.mask, terms)
    return scatter_to_mask(batch.mask, chosen), entropies


def _predicting_logits(model: Any, batch: CompletionBatch) -> Tensor:
    """(N, V) logits of transformers' model at the predicting positions. The output layer gets no other
    hidden states: with a large vocabulary it would be most of the work."""

    def select(module: Any, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
        return (inputs[0][batch.rows, batch.predicting_positions],) if inputs else None

    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(select) if head is not None else None
    try:
        logits: Tensor = model(input_ids=batch.tokens, use_cache=False).logits
    finally:
        if hook:
            hook.remove()
    return logits if logits.ndim == 2 else logits[batch.rows, batch.predicting_positions]


def autocast_to(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[Any]:
    """Inside, transformers' models compute matrix products in this dtype; float32 changes nothing."""
    if dtype in (None, torch.float32):
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def find_layers(model: Any) -> list[Any]:
    """The transformer blocks of transformers' model."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


@contextmanager
def recompute_layers(model: Any, enabled: bool) -> Iterator[None]:
    """Activation checkpointing in transformers' layers. They use it in training mode only, so their own
    flag is set for the forward pass; modules inside them stay in evaluation mode, without dropout."""
    layers = find_layers(model) if enabled else []
    if enabled and not layers:
        raise ConfigError(
            f"learn.activation_checkpointing: transformers cannot recompute the layers of a model of type "
            f'"{model.config.model_type}". Set it to false.'
        )
    for layer in layers:
        layer.training = layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(
            checkpoint, use_reentrant=False, preserve_rng_state=False
        )
    try:
        yield
    finally:
        for layer in layers:
            layer.training = layer.gradient_checkpointing = False


def scatter_to_mask(mask: Tensor, flat: Tensor) -> Tensor:
    """(R, T) zeros with the values of `flat` where the mask is true. float32 but for double inputs."""
    dtype = flat.dtype if flat.dtype == torch.float64 else torch.float32
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_scatter(mask, flat)


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """`log_softmax(hidden @ head.T / temperature)[target]`, `(N,)`; float32 if the inputs are bfloat16."""
    return _TokenLogprobs.apply(hidden, head, targets, temperature)


class _TokenLogprobs(torch.autograd.Function):
    """Saves the probabilities instead of the logits: the backward pass needs one scatter more. It writes over
    them, so that a second backward pass raises."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float
    ) -> Tensor:
        logits = linear(hidden, head)  # (N, V)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        if temperature != 1:
            logits.div_(temperature)
        rows, chosen = max(1, CACHED_LOGITS // logits.shape[-1]), []
        for part, target in zip(logits.split(rows), targets.split(rows), strict=True):
            normalizer = part.logsumexp(-1, keepdim=True)
            chosen.append((part.gather(-1, target[:, None]) - normalizer)[:, 0])
            part.sub_(normalizer).exp_()
        ctx.save_for_backward(hidden, head, targets, logits)
        ctx.temperature = temperature
        return torch.cat(chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, probabilities = ctx.saved_tensors
        grad = grad / ctx.temperature
        grad_logits = probabilities.mul_(-grad[:, None])
        grad_logits.scatter_add_(-1, targets[:, None], grad[:, None])
        grad_logits = grad_logits.to(hidden.dtype)
        grad_head = grad_logits.t() @ hidden if ctx.needs_input_grad[1] else None
        return linear(grad_logits, head.t()), grad_head, None, None
