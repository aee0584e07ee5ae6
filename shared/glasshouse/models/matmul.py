"""Products with the weights of large models on a CPU, computed by oneDNN.

torch computes products of float32 matrices on a CPU with MKL. oneDNN, which the same build contains, is faster for
the shapes of a language model on the processors on which it was measured (docs/benchmarks.md): 1.1 times in learning,
1.2 to 4 times in decoding, the more so the fewer rows there are, and again if the weight is stored in oneDNN's own
layout (`pack_weight`).

torch has no public function for this. The two operators used here are those that `torch.compile` calls for frozen
weights. They have no gradient, so `linear` leaves every product that needs one to torch; `fused_ops` computes
gradients by products, too.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, onednn: bool) -> Tensor:
    """`linear(x, weight, bias)`, with `onednn` by oneDNN where it can; the weight may be packed."""
    uses_onednn = onednn and _suits_onednn(weight) and not _needs_gradient(x, weight)
    if uses_onednn or weight.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


def pack_weight(weight: Tensor) -> Tensor:
    """A copy of the weight in oneDNN's layout, for many products without gradients, or the weight itself if oneDNN
    does not compute its products.

    Example: `linear(x, pack_weight(layer.weight), onednn=True)`
    """
    if not _suits_onednn(weight):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    return packed


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


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
