"""Products by oneDNN: the values of torch's, and never a lost gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from glasshouse.models import matmul
from glasshouse.models.matmul import has_onednn, linear, pack_weight

ROWS, INPUTS, OUTPUTS = 5, 512, 640
needs_onednn = pytest.mark.skipif(not has_onednn(), reason="this build of torch has no oneDNN")


def random_tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return x, weight, bias


@needs_onednn
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_has_the_values_of_linear(has_bias: bool) -> None:
    x, weight, bias = random_tensors()
    arguments = (bias,) if has_bias else ()
    expected = F.linear(x.double(), weight.double(), *(b.double() for b in arguments)).float()
    packed = pack_weight(weight)
    assert packed.is_mkldnn
    for w in (weight, packed, weight.t().contiguous().t()):
        torch.testing.assert_close(
            linear(x, w, *arguments, onednn=True), expected, atol=1e-4, rtol=1e-5
        )
    for rows in (1, 2, 7):  # one layout suits every number of rows
        torch.testing.assert_close(
            linear(x[0, :rows], packed, *arguments, onednn=True),
            expected[0, :rows],
            atol=1e-4,
            rtol=1e-5,
        )


@needs_onednn
def test_packing_copies_the_weight() -> None:
    x, weight, _ = random_tensors()
    packed, before = pack_weight(weight), linear(x, weight, onednn=True)
    weight.zero_()
    torch.testing.assert_close(linear(x, packed, onednn=True), before, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("trained", ["x", "weight"])
def test_a_product_that_needs_a_gradient_has_one(trained: str) -> None:
    """oneDNN's operator has none: torch would return a constant without a word."""
    x, weight, _ = random_tensors()
    target = {"x": x, "weight": weight}[trained].requires_grad_()
    [gradient] = torch.autograd.grad(linear(x, weight, onednn=True).sum(), target)
    [expected] = torch.autograd.grad(F.linear(x, weight).sum(), target)
    assert torch.equal(gradient, expected)


def test_small_models_keep_the_bits_of_torch() -> None:
    x, weight, bias = random_tensors()
    assert torch.equal(linear(x, weight, bias, onednn=False), F.linear(x, weight, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_number_formats_are_left_to_torch(dtype: torch.dtype) -> None:
    x, weight = (tensor.to(dtype) for tensor in random_tensors()[:2])
    assert pack_weight(weight) is weight
    assert torch.equal(linear(x, weight, onednn=True), F.linear(x, weight))


def test_a_build_without_onednn_computes_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "has_onednn", lambda: False)
    x, weight, bias = random_tensors()
    assert pack_weight(weight) is weight
    assert torch.equal(linear(x, weight, bias, onednn=True), F.linear(x, weight, bias))
