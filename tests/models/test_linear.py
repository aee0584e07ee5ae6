"""Products by oneDNN and log-probabilities of tokens: values and gradients of the plain operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.models import linear as linear_layers
from glasshouse.models.linear import linear, pack_weight
from glasshouse.models.logprobs import token_logprobs


def random_tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=dtype, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs_equal_a_log_softmax(temperature: float) -> None:
    hidden, head = random_tensors((6, 4), (9, 4))
    targets = torch.tensor([0, 3, 8, 8, 1, 2])
    grad = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, -1.0], dtype=torch.float64)
    plain = (hidden @ head.t() / temperature).log_softmax(-1)[torch.arange(6), targets]
    own = token_logprobs(hidden, head, targets, temperature)
    assert torch.allclose(own, plain)
    expected = torch.autograd.grad(plain, (hidden, head), grad)
    gradients = torch.autograd.grad(own, (hidden, head), grad, retain_graph=True)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(gradients, expected, strict=True))
    with pytest.raises(RuntimeError, match="inplace"):  # the first pass used the memory
        torch.autograd.grad(own, (hidden, head), grad)


def random_layer(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [t.detach() for t in random_tensors((2, 5, 512), (640, 512), (640,), dtype=dtype)]


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_that_needs_a_gradient_has_one(has_bias: bool) -> None:
    """oneDNN's operator has none: torch would return a constant without a word."""
    x, weight, *bias = random_tensors((2, 3, 4), (5, 4), (5,))[: 2 + has_bias]
    assert torch.autograd.gradcheck(lambda *args: linear(*args), (x, weight, *bias))
    x, weight = (tensor.detach().float().requires_grad_() for tensor in (x, weight))
    gradients = torch.autograd.grad(linear(x, weight).square().sum(), (x, weight))
    expected = torch.autograd.grad(F.linear(x, weight).square().sum(), (x, weight))
    for own, plain in zip(gradients, expected, strict=True):
        torch.testing.assert_close(own, plain)


def test_gradients_of_adapters_are_those_of_their_product() -> None:
    """The weight is passed merged and frozen; gradients reach x and the factors as if it had been computed."""
    x, base, down, up = random_tensors((2, 3, 4), (5, 4), (2, 4), (5, 2))
    base = base.detach()
    grad = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = linear(x, (base + up @ down).detach(), None, down, up)
    plain = F.linear(x, base + up @ down)
    assert torch.allclose(own, plain)
    expected = torch.autograd.grad(plain, (x, down, up), grad)
    gradients = torch.autograd.grad(own, (x, down, up), grad)
    assert all(torch.allclose(a, b) for a, b in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, None])
def test_what_onednn_cannot_compute_is_left_to_torch(
    dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other number formats, and a build without it."""
    if dtype is None:
        monkeypatch.setattr(linear_layers, "has_onednn", lambda: False)
    x, weight, bias = random_layer(dtype or torch.float32)
    assert pack_weight(weight) is weight
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
