"""Linear layers: products by oneDNN on a CPU, with gradients, and with LoRA adapters merged into the weights.

torch multiplies float32 matrices on a CPU with MKL. oneDNN, which the same build contains, is faster for the shapes of
a language model (docs/benchmarks.md): 1.1 times in learning, 1.2 to 4 times in decoding, most of all with weights in
its own layout (`pack_weight`). torch has no public function for it: the operators are those that `torch.compile` calls.

With adapters, forward and input gradients cost what they cost without, and only the gradients of the factors are added.

Shapes: N rows (any leading shape), r the rank.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Linear(NamedTuple):
    """What a product needs of a layer."""

    weight: Tensor
    """(outputs, inputs); with adapters, merged with them and without a graph. Without gradients, it may be packed."""
    bias: Tensor | None = None
    down: Tensor | None = None
    """(r, inputs); `up @ down` is the trained update that the weight already contains."""
    up: Tensor | None = None
    """(outputs, r), with the scale of the adapter."""


def read_linear(layer: Any, dtype: torch.dtype, *, pack: bool = False) -> Linear:
    """A layer of the model, with its adapters merged, in this dtype; differentiable."""
    base = getattr(layer, "base_layer", layer)
    weight, down, up = base.weight, None, None
    if hasattr(layer, "lora_A") and not layer.disable_adapters:
        [name] = layer.active_adapters
        down, up = layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]
        with torch.no_grad():
            weight = torch.addmm(weight, up, down)
    tensors = (weight, base.bias, down, up)
    parts: list[Any] = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
    found = Linear(*parts)
    return found._replace(weight=pack_weight(found.weight)) if pack else found


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    down: Tensor | None = None,
    up: Tensor | None = None,
) -> Tensor:
    """`F.linear(x, weight, bias)`, by oneDNN where it can; gradients reach the factors of an adapter.

    Example: `linear(x, *read_linear(layer, torch.float32))`
    """
    if torch.is_grad_enabled():
        product: Tensor = _Linear.apply(x, weight, bias, down, up)
        return product
    return _multiply(x, weight, bias)


def pack_weight(weight: Tensor) -> Tensor:
    """A copy of the weight in oneDNN's layout, for many products without gradients, or the weight itself if oneDNN
    does not compute its products."""
    if not _suits_onednn(weight):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return packed


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.is_mkldnn or _suits_onednn(weight):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


def _suits_onednn(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and has_onednn()


@cache
def has_onednn() -> bool:
    """Whether this build of torch has both operators and they compute products."""
    x, weight = torch.ones(2, 4), torch.ones(3, 4)
    try:
        with torch.inference_mode():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            product = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return torch.equal(product, torch.full((2, 3), 4.0))


class _Linear(torch.autograd.Function):
    """The operators have no gradient of their own. Gradients of weights are left to MKL, which is faster there; those
    of frozen weights are not computed."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor | None,
        up: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, up = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows, flat = x.flatten(0, -2), grad.flatten(0, -2)
        return (
            _multiply(grad, weight.t()) if needs_x else None,
            flat.t() @ rows if needs_weight else None,
            flat.sum(0) if needs_bias else None,
            None if down is None else (flat @ up).t() @ rows,
            None if down is None else flat.t() @ (rows @ down.t()),
        )
