"""Four pieces of a Llama block with backward passes of their own: fewer walks through memory.

A model of this size spends its time moving activations, not multiplying. Autograd's generic backward
of a normalised product, a rotation, a gated product or a log-softmax walks over them many times; each
function here does the same sums in fewer walks. Values and gradients are those of the plain
operations to rounding (tests check both). Without gradients the plain operations are used.

Shapes: N rows (any leading shape), D hidden, M the MLP's width, V the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def norm_linear(x: Tensor, gain: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`linear(rms_norm(x) * gain, weight, bias)` for x `(N, D)`."""
    if torch.is_grad_enabled():
        return _NormLinear.apply(x, gain, weight, bias, eps)
    return F.linear(F.rms_norm(x, x.shape[-1:], gain, eps), weight, bias)


def gated_down(x: Tensor, gate_up: Tensor, down: Tensor, bias: Tensor | None) -> Tensor:
    """`x + linear(silu(gate) * up, down, bias)` for gate_up `(N, 2 M)`."""
    if torch.is_grad_enabled():
        return _GatedDown.apply(x, gate_up, down, bias)
    gate, up = gate_up.chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down, bias)


def chosen_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """`log_softmax(hidden @ head.T / temperature)[target]`, `(N,)`."""
    return _Chosen.apply(hidden, head, targets, temperature)


class _NormLinear(torch.autograd.Function):
    """The gain is folded into the weight, so that its gradient comes from the weight's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        flat = x.flatten(0, -2)
        scale = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)  # (N, 1)
        scale = scale.square_().div_(flat.shape[-1]).add_(eps).rsqrt_()
        normed, folded = flat * scale, weight * gain
        ctx.save_for_backward(normed, scale, gain, weight, folded)
        ctx.biased = bias is not None
        return F.linear(normed, folded, bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, gain, weight, folded = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        inward = flat @ folded  # (N, D)
        to_folded = flat.t() @ normed
        along = torch.linalg.vecdot(inward, normed).div_(-normed.shape[-1])[:, None]
        to_x = torch.addcmul(inward, normed, along).mul_(scale).view(*grad.shape[:-1], -1)
        to_bias = flat.sum(0) if ctx.biased else None
        return to_x, (to_folded * weight).sum(0), to_folded * gain, to_bias, None


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, bias: Tensor | None) -> Tensor:
        gate, up = gate_up.flatten(0, -2).chunk(2, dim=-1)
        opened = F.silu(gate)
        inner = opened * up
        ctx.save_for_backward(gate_up, opened, inner, down)
        ctx.biased = bias is not None
        out = torch.addmm(x.flatten(0, -2), inner, down.t()).view_as(x)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, opened, inner, down = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        gate, up = gate_up.flatten(0, -2).chunk(2, dim=-1)
        inward = flat @ down  # (N, M)
        to_gate_up = torch.empty_like(gate_up)
        to_gate, to_up = to_gate_up.flatten(0, -2).chunk(2, dim=-1)
        torch.mul(inward, opened, out=to_up)
        to_gate.copy_(torch.ops.aten.silu_backward(inward.mul_(up), gate))
        return grad, to_gate_up, flat.t() @ inner, flat.sum(0) if ctx.biased else None


class _Chosen(torch.autograd.Function):
    """Keeps the probabilities instead of the logits: the backward pass is one scatter away."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float
    ) -> Tensor:
        logits = hidden @ head.t()  # (N, V)
        if temperature != 1:
            logits.div_(temperature)
        normaliser = logits.logsumexp(-1, keepdim=True)
        chosen = (logits.gather(-1, targets[:, None]) - normaliser)[:, 0]
        ctx.save_for_backward(hidden, head, targets, logits.sub_(normaliser).exp_())
        ctx.temperature = temperature
        return chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, probabilities = ctx.saved_tensors
        grad = grad / ctx.temperature
        to_logits = probabilities * -grad[:, None]
        to_logits.scatter_add_(-1, targets[:, None], grad[:, None])
        return to_logits @ head, to_logits.t() @ hidden, None, None
