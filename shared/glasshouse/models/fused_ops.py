"""Parts of a Llama model with hand-written backward passes that read memory fewer times.

A small model spends its time moving activations, not multiplying. Autograd's generic backward
of a normalized linear layer, a gated MLP or a log-softmax reads them many times; each function here
computes the same sums in fewer passes. Values and gradients equal those of the plain operations up
to rounding (tests check both). Without gradients, and in bfloat16, the plain operations are used:
torch's normalization keeps float32 inside, which these functions do not.

`large` (`Tuning.onednn`) is for the weights of large models. They are multiplied by `matmul.linear`, and nothing is
folded into them: they have more numbers than the activations. The gradient of a weight is added to `weight.grad` where
the weight is a leaf that has one, instead of being returned (`adds_gradient`): so the gradients of microbatches are
added up without another tensor of their size.

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

from glasshouse.models import matmul

CACHED_LOGITS = 1 << 19
"""Logits that stay in the cache of a processor core: 2 MB."""


class LowRank(NamedTuple):
    """Trained factors of an update `up @ down` that a frozen weight already contains."""

    down: Tensor
    """(r, inputs)"""
    up: Tensor
    """(outputs, r), with the scale of the adapter."""


class LinearWeights(NamedTuple):
    """Linear layers of the same input, concatenated."""

    weight: Tensor
    """(outputs, inputs); with adapters, merged with them and without a graph. Without gradients, it may be packed."""
    bias: Tensor | None = None
    adapter: LowRank | None = None
    """The factors, if gradients are enabled: they are what is trained."""


def linear(x: Tensor, layer: LinearWeights, *, large: bool) -> Tensor:
    """`linear(x, weight, bias)`; gradients reach the factors of the adapter."""
    weight, bias, adapter = layer
    if not torch.is_grad_enabled():
        return matmul.linear(x, weight, bias, onednn=large)
    if adapter is None and not large:
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias, large, *(adapter or (None, None)))


def rms_norm_linear(
    x: Tensor, gain: Tensor, layer: LinearWeights, eps: float, *, large: bool
) -> Tensor:
    """`linear(rms_norm(x) * gain, weight, bias)` for x `(N, D)`."""
    if not torch.is_grad_enabled() or x.dtype == torch.bfloat16:
        return linear(F.rms_norm(x, x.shape[-1:], gain, eps), layer, large=large)
    if large:
        return linear(_RMSNorm.apply(x, gain, eps), layer, large=large)
    weight, bias, adapter = layer
    return _RMSNormLinear.apply(x, gain, weight, bias, eps, *(adapter or (None, None)))


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
    qk, v = joined.split([num_heads + num_kv_heads, num_kv_heads], dim=-2)
    q, k = rotate(qk, cos, sin).split([num_heads, num_kv_heads], dim=-2)
    return q, k, v


def embed(tokens: Tensor, weight: Tensor, padding_token: int | None, *, large: bool) -> Tensor:
    """`embedding(tokens, weight)`; the padding token gets no gradient."""
    if torch.is_grad_enabled() and large:
        return _Embedding.apply(tokens, weight, padding_token)
    return F.embedding(tokens, weight, padding_token)


def gated_mlp_output(x: Tensor, gate_up: Tensor, down: LinearWeights, *, large: bool) -> Tensor:
    """`x + linear(silu(gate) * up, down)` for gate_up `(N, 2 M)`."""
    if torch.is_grad_enabled() and x.dtype != torch.bfloat16:
        weight, bias, adapter = down
        return _GatedMLPOutput.apply(x, gate_up, weight, bias, large, *(adapter or (None, None)))
    gate, up = gate_up.chunk(2, dim=-1)
    return x + linear(F.silu(gate) * up, down, large=large)


def token_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, *, large: bool
) -> Tensor:
    """`log_softmax(hidden @ head.T / temperature)[target]`, `(N,)`; float32 if the inputs are bfloat16."""
    return _TokenLogprobs.apply(hidden, head, targets, temperature, large)


def _normalize_in_place(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the targets, `(N,)`, and all probabilities, in the memory of the logits."""
    chosen = []
    for part, target in zip(split_rows(logits), split_rows(targets, like=logits), strict=True):
        maximum = part.amax(-1, keepdim=True)
        of_target = part.gather(-1, target[:, None]) - maximum
        total = part.sub_(maximum).exp_().sum(-1, keepdim=True)
        part.div_(total)
        chosen.append((of_target - total.log())[:, 0])
    return torch.cat(chosen), logits


def split_rows(tensor: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """The rows of logits `(N, V)`, or of another tensor `like` these logits: on a CPU some at a time, which stay in its
    cache from one operation to the next, else all."""
    logits = tensor if like is None else like
    rows = CACHED_LOGITS // logits.shape[-1] if logits.device.type == "cpu" else len(logits)
    return tensor.split(max(1, rows))


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


def adds_gradient(weight: Tensor) -> bool:
    """Whether backward passes add the gradient of this weight to `weight.grad`: leaves that are not parameters, once
    they have a gradient (`llama.detach_weights` makes such leaves)."""
    is_detached = weight.is_leaf and not isinstance(weight, torch.nn.Parameter)
    return is_detached and weight.grad is not None


def _weight_gradient(weight: Tensor, x: Tensor, grad: Tensor) -> Tensor | None:
    """Gradient of a weight from input `(N, inputs)` and output gradient `(N, outputs)`; None if it was added to
    that of the weight."""
    if not adds_gradient(weight):
        return grad.t() @ x
    assert weight.grad is not None
    weight.grad.addmm_(grad.t(), x)
    return None


def _factor_gradients(
    x: Tensor, grad: Tensor, down: Tensor | None, up: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of both factors from input `(N, inputs)` and output gradient `(N, outputs)`."""
    if down is None or up is None:
        return None, None
    return (grad @ up).t() @ x, grad.t() @ (x @ down.t())


class _Embedding(torch.autograd.Function):
    """Adds up the gradients of the tokens that occur, without a tensor of all others."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, padding_token: int | None) -> Tensor:
        ctx.padding_token = -1 if padding_token is None else padding_token
        ctx.save_for_backward(tokens, weight)
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return None, None, None
        if not adds_gradient(weight):
            gradient = torch.ops.aten.embedding_dense_backward(
                grad, tokens, len(weight), ctx.padding_token, False
            )
            return None, gradient, None
        tokens, grad = tokens.flatten(), grad.flatten(0, -2)
        grad = grad.masked_fill((tokens == ctx.padding_token)[:, None], 0)
        weight.grad.index_add_(0, tokens, grad)
        return None, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        large: bool,
        down: Tensor | None,
        up: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        ctx.has_bias, ctx.large = bias is not None, large
        return matmul.linear(x, weight, bias, onednn=large)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        flat_x, flat = x.flatten(0, -2), grad.flatten(0, -2)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = matmul.linear(grad, weight.t(), onednn=ctx.large)
        grad_weight = _weight_gradient(weight, flat_x, flat) if ctx.needs_input_grad[1] else None
        grad_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, *_factor_gradients(flat_x, flat, down, up)


class _RMSNorm(torch.autograd.Function):
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
        grad_x = _rms_norm_gradient(grad * gain, normed, scale) if ctx.needs_input_grad[0] else None
        return grad_x, grad_gain, None


class _RMSNormLinear(torch.autograd.Function):
    """Folds the gain into the weight, so that its gradient follows from that of the weight."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, weight: Tensor, bias: Tensor | None, eps: float,
        down: Tensor | None, up: Tensor | None,
    ) -> Tensor:  # fmt: skip
        flat = x.flatten(0, -2)
        scale = _rms_scale(flat, eps)
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
            grad_x = _rms_norm_gradient(flat @ folded, normed, scale)  # (N, D)
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


class _SplitAndRotate(torch.autograd.Function):
    """Writes the gradients of q, k and v next to each other, instead of adding up three that are mostly zeros."""

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        qk, v = joined.split([num_heads + num_kv_heads, num_kv_heads], dim=-2)
        q, k = rotate(qk, cos, sin).split([num_heads, num_kv_heads], dim=-2)
        return q, k, v

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


class _GatedMLPOutput(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        bias: Tensor | None,
        large: bool,
        factor_down: Tensor | None,
        factor_up: Tensor | None,
    ) -> Tensor:
        gate, up = gate_up.flatten(0, -2).chunk(2, dim=-1)
        activated = F.silu(gate)
        inner = activated * up
        ctx.save_for_backward(gate_up, activated, inner, down, factor_down, factor_up)
        ctx.has_bias, ctx.large = bias is not None, large
        if large:
            product = matmul.linear(inner, down, bias, onednn=True)
            return product.add_(x.flatten(0, -2)).view_as(x)
        out = torch.addmm(x.flatten(0, -2), inner, down.t()).view_as(x)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, activated, inner, down, *factors = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        gate, up = gate_up.flatten(0, -2).chunk(2, dim=-1)
        grad_inner = matmul.linear(flat, down.t(), onednn=ctx.large)  # (N, M)
        grad_gate_up = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_gate_up.flatten(0, -2).chunk(2, dim=-1)
        torch.mul(grad_inner, activated, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad_inner.mul_(up), gate, grad_input=grad_gate)
        grad_down = _weight_gradient(down, inner, flat) if ctx.needs_input_grad[2] else None
        grad_bias = flat.sum(0) if ctx.has_bias and ctx.needs_input_grad[3] else None
        of_factors = _factor_gradients(inner, flat, *factors)
        return grad, grad_gate_up, grad_down, grad_bias, None, *of_factors


class _TokenLogprobs(torch.autograd.Function):
    """Saves the probabilities instead of the logits: the backward pass needs one scatter more. It writes over
    them, so that a second backward pass raises."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, large: bool
    ) -> Tensor:
        logits = matmul.linear(hidden, head, onednn=large)  # (N, V)
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        if temperature != 1:
            logits.div_(temperature)
        ctx.temperature, ctx.large = temperature, large
        if large:  # no temporary copies of logits that do not fit into a cache
            chosen, probabilities = _normalize_in_place(logits, targets)
        else:
            normalizer = logits.logsumexp(-1, keepdim=True)
            chosen = (logits.gather(-1, targets[:, None]) - normalizer)[:, 0]
            probabilities = logits.sub_(normalizer).exp_()
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
        grad_head = _weight_gradient(head, hidden, grad_logits) if ctx.needs_input_grad[1] else None
        grad_hidden = matmul.linear(grad_logits, head.t(), onednn=ctx.large)
        return grad_hidden, grad_head, None, None, None
