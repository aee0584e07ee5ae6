"""Parts of a Llama model with hand-written backward passes that keep and read fewer activations.

Values and gradients equal those of the plain operations up to rounding. Without gradients, and in bfloat16, the plain
operations are used: torch's normalization keeps float32 inside, which these functions do not.

Shapes: N rows (any leading shape), D hidden, M the MLP width, V the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from glasshouse.models.matmul import LinearWeights, linear

CACHED_LOGITS = 1 << 19
"""Logits that stay in the cache of a processor core from one operation to the next: 2 MB."""


def rms_norm_linear(x: Tensor, gain: Tensor, layer: LinearWeights, eps: float) -> Tensor:
    """`linear(rms_norm(x) * gain, weight, bias)`"""
    if not torch.is_grad_enabled() or x.dtype == torch.bfloat16:
        return linear(F.rms_norm(x, x.shape[-1:], gain, eps), *layer)
    return linear(_RMSNorm.apply(x, gain, eps), *layer)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries or keys `(..., d)` with the cosines and signed sines of `llama.rotary_tables`, in float32."""
    dtype = x.dtype
    if dtype == torch.bfloat16:
        x = x.float()
    return torch.addcmul(x * cos, _swap_halves(x), sin).to(dtype)


def split_and_rotate(
    joined: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated q `(..., H, d)` and k `(..., J, d)`, and v `(..., J, d)`, of their joined heads `(..., H + 2 J, d)`."""
    if torch.is_grad_enabled() and joined.dtype != torch.bfloat16:
        q, k, v = _SplitAndRotate.apply(joined, cos, sin, num_heads, num_kv_heads)
        return q, k, v
    return _split_and_rotate(joined, cos, sin, num_heads, num_kv_heads)


def gated_mlp_output(x: Tensor, gate_up: Tensor, down: LinearWeights) -> Tensor:
    """`x + linear(silu(gate) * up, down)` for gate_up `(N, 2 M)`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return x + linear(F.silu(gate) * up, *down)


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """`log_softmax(hidden @ head.T / temperature)[target]`, `(N,)`; float32 if the inputs are bfloat16."""
    return _TokenLogprobs.apply(hidden, head, targets, temperature)


def _split_and_rotate(
    joined: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    qk, v = joined.split([num_heads + num_kv_heads, num_kv_heads], dim=-2)
    q, k = rotate(qk, cos, sin).split([num_heads, num_kv_heads], dim=-2)
    return q, k, v


def _swap_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([second, first], dim=-1)


def _rms_scale(x: Tensor, eps: float) -> Tensor:
    """(N, 1) 1 / root mean square of each row."""
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _rms_norm_gradient(grad: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """(N, D) gradient of x from that of `normed = x * scale`."""
    projection = torch.linalg.vecdot(grad, normed).div_(-normed.shape[-1])[..., None]
    return torch.addcmul(grad, normed, projection).mul_(scale)


class _RMSNorm(torch.autograd.Function):
    """Keeps one tensor of activations for the backward pass; autograd would keep four."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        scale = _rms_scale(x, eps)
        normed = x * scale
        ctx.save_for_backward(normed, scale, gain)
        return normed * gain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, gain = ctx.saved_tensors
        grad_gain = (grad * normed).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return _rms_norm_gradient(grad * gain, normed, scale), grad_gain, None


class _SplitAndRotate(torch.autograd.Function):
    """Writes the gradients of q, k and v next to each other, instead of adding up three that are mostly zeros."""

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _split_and_rotate(joined, cos, sin, num_heads, num_kv_heads)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
    ) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        sizes = [grad.shape[-2] for grad in (grad_q, grad_k, grad_v)]
        grad = grad_q.new_empty(*grad_q.shape[:-2], sum(sizes), grad_q.shape[-1])
        *rotated, value = grad.split(sizes, dim=-2)
        for part, of_part in zip(rotated, (grad_q, grad_k), strict=True):
            torch.add(of_part * cos, _swap_halves(of_part * sin), out=part)
        value.copy_(grad_v)
        return grad, None, None, None, None


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
