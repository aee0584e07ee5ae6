"""Three parts of a Llama model with hand-written backward passes that read memory fewer times.

A model of this size spends its time moving activations, not multiplying. Autograd's generic backward
of a normalised linear layer, a gated MLP or a log-softmax reads them many times; each function here
computes the same sums in fewer passes. Values and gradients equal those of the plain operations up
to rounding (tests check both). Without gradients, and in bfloat16, the plain operations are used:
torch's normalisation keeps float32 inside, which these functions do not.

Gradients of frozen weights are not computed. A weight with low-rank adapters (LoRA) is passed merged,
together with its factors (`LowRank`): forward and input gradients cost what they cost without adapters, and
only the gradients of the factors are added.

Shapes: N rows (any leading shape), D hidden, M the MLP width, V the vocabulary, r the rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE_VOCABULARY = 8192
"""From here on the logits of a microbatch do not fit into a cache: no temporary copies are made of them."""


class LowRank(NamedTuple):
    """Trained factors of an update `up @ down` that a frozen weight already contains."""

    down: Tensor
    """(r, inputs)"""
    up: Tensor
    """(outputs, r), with the scale of the adapter."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, adapter: LowRank | None) -> Tensor:
    """`linear(x, weight, bias)`; gradients reach the factors of the adapter."""
    if adapter is None or not torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    return _AdaptedLinear.apply(x, weight, bias, *adapter)


def rms_norm_linear(
    x: Tensor,
    gain: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    adapter: LowRank | None = None,
) -> Tensor:
    """`linear(rms_norm(x) * gain, weight, bias)` for x `(N, D)`."""
    if torch.is_grad_enabled() and x.dtype != torch.bfloat16:
        return _RMSNormLinear.apply(x, gain, weight, bias, eps, *(adapter or (None, None)))
    return linear(F.rms_norm(x, x.shape[-1:], gain, eps), weight, bias, adapter)


def gated_mlp_output(
    x: Tensor, gate_up: Tensor, down: Tensor, bias: Tensor | None, adapter: LowRank | None = None
) -> Tensor:
    """`x + linear(silu(gate) * up, down, bias)` for gate_up `(N, 2 M)`."""
    if torch.is_grad_enabled() and x.dtype != torch.bfloat16:
        return _GatedMLPOutput.apply(x, gate_up, down, bias, *(adapter or (None, None)))
    gate, up = gate_up.chunk(2, dim=-1)
    return x + linear(F.silu(gate) * up, down, bias, adapter)


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """`log_softmax(hidden @ head.T / temperature)[target]`, `(N,)`; float32 if the inputs are bfloat16."""
    return _TokenLogprobs.apply(hidden, head, targets, temperature)


def _normalise_in_place(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets, `(N,)`, and all probabilities, in the memory of the logits."""
    maximum = logits.amax(-1, keepdim=True)
    chosen = logits.gather(-1, targets[:, None]) - maximum
    total = logits.sub_(maximum).exp_().sum(-1, keepdim=True)
    return (chosen - total.log())[:, 0], logits.div_(total)


def _factor_gradients(
    x: Tensor, grad: Tensor, down: Tensor | None, up: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of both factors from input `(N, inputs)` and output gradient `(N, outputs)`."""
    if down is None or up is None:
        return None, None
    return (grad @ up).t() @ x, grad.t() @ (x @ down.t())


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        factors = _factor_gradients(x.flatten(0, -2), grad.flatten(0, -2), down, up)
        return grad_x, None, None, *factors


class _RMSNormLinear(torch.autograd.Function):
    """Folds the gain into the weight, so that its gradient follows from that of the weight."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, weight: Tensor, bias: Tensor | None, eps: float,
        down: Tensor | None, up: Tensor | None,
    ) -> Tensor:  # fmt: skip
        flat = x.flatten(0, -2)
        scale = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)  # (N, 1)
        scale = scale.square_().div_(flat.shape[-1]).add_(eps).rsqrt_()
        normed, folded = flat * scale, weight * gain
        ctx.save_for_backward(normed, scale, gain, weight, folded, down, up)
        ctx.has_bias = bias is not None
        return F.linear(normed, folded, bias).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, gain, weight, folded, down, up = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        grad_x = grad_gain = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_inner = flat @ folded  # (N, D)
            projection = torch.linalg.vecdot(grad_inner, normed).div_(-normed.shape[-1])[:, None]
            grad_x = torch.addcmul(grad_inner, normed, projection).mul_(scale)
            grad_x = grad_x.view(*grad.shape[:-1], -1)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_folded = flat.t() @ normed
            grad_gain, grad_weight = (grad_folded * weight).sum(0), grad_folded * gain
        grad_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[3] else None
        # the factors see `normed * gain`
        grad_down, grad_up = _factor_gradients(
            normed, flat, None if down is None else down * gain, up
        )
        grad_down = None if grad_down is None else grad_down * gain
        return grad_x, grad_gain, grad_weight, grad_bias, None, grad_down, grad_up


class _GatedMLPOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, bias: Tensor | None,
        factor_down: Tensor | None, factor_up: Tensor | None,
    ) -> Tensor:  # fmt: skip
        gate, up = gate_up.flatten(0, -2).chunk(2, dim=-1)
        activated = F.silu(gate)
        inner = activated * up
        ctx.save_for_backward(gate_up, activated, inner, down, factor_down, factor_up)
        ctx.has_bias = bias is not None
        out = torch.addmm(x.flatten(0, -2), inner, down.t()).view_as(x)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, activated, inner, down, *factors = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        gate, up = gate_up.flatten(0, -2).chunk(2, dim=-1)
        grad_inner = flat @ down  # (N, M)
        grad_gate_up = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_gate_up.flatten(0, -2).chunk(2, dim=-1)
        torch.mul(grad_inner, activated, out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(grad_inner.mul_(up), gate))
        grad_down = flat.t() @ inner if ctx.needs_input_grad[2] else None
        grad_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[3] else None
        return grad, grad_gate_up, grad_down, grad_bias, *_factor_gradients(inner, flat, *factors)


class _TokenLogprobs(torch.autograd.Function):
    """Saves the probabilities instead of the logits: the backward pass needs one scatter more. It writes over
    them, so that a second backward pass raises."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float
    ) -> Tensor:
        logits = hidden @ head.t()  # (N, V)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        if temperature != 1:
            logits.div_(temperature)
        ctx.temperature = temperature
        if logits.shape[-1] >= LARGE_VOCABULARY:
            chosen, probabilities = _normalise_in_place(logits, targets)
        else:
            normaliser = logits.logsumexp(-1, keepdim=True)
            chosen = (logits.gather(-1, targets[:, None]) - normaliser)[:, 0]
            probabilities = logits.sub_(normaliser).exp_()
        ctx.save_for_backward(hidden, head, targets, probabilities)
        return chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, targets, probabilities = ctx.saved_tensors
        grad = grad / ctx.temperature
        grad_logits = probabilities.mul_(-grad[:, None])
        grad_logits.scatter_add_(-1, targets[:, None], grad[:, None])
        grad_logits = grad_logits.to(hidden.dtype)
        grad_head = grad_logits.t() @ hidden if ctx.needs_input_grad[1] else None
        return grad_logits @ head, grad_head, None, None
