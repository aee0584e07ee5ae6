"""Hand-written backward passes: the plain operations' values, and gradients by finite differences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from glasshouse.models.fused_ops import chosen_logprobs, gated_down, norm_linear


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes
    ]


@pytest.mark.parametrize("biased", [False, True])
def test_norm_linear_is_a_normalised_product(biased: bool) -> None:
    x, gain, weight, bias = tensors((2, 3, 4), (4,), (5, 4), (5,))
    given = (x, gain, weight, bias if biased else None, 1e-5)
    plain = F.linear(F.rms_norm(x, (4,), gain, 1e-5), weight, given[3])
    assert torch.allclose(norm_linear(*given), plain, atol=1e-12)
    assert torch.autograd.gradcheck(norm_linear, given)


@pytest.mark.parametrize("biased", [False, True])
def test_gated_down_is_a_gated_product_and_its_residual(biased: bool) -> None:
    x, gate_up, down, bias = tensors((2, 3, 4), (2, 3, 10), (4, 5), (4,))
    given = (x, gate_up, down, bias if biased else None)
    gate, up = gate_up.chunk(2, -1)
    assert torch.allclose(gated_down(*given), x + F.linear(F.silu(gate) * up, down, given[3]))
    assert torch.autograd.gradcheck(gated_down, given)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chosen_logprobs_are_a_log_softmax(temperature: float) -> None:
    hidden, head = tensors((6, 4), (9, 4))
    targets = torch.tensor([0, 3, 8, 8, 1, 2])
    plain = (hidden @ head.t() / temperature).log_softmax(-1)[torch.arange(6), targets]
    assert torch.allclose(chosen_logprobs(hidden, head, targets, temperature), plain)
    assert torch.autograd.gradcheck(
        lambda h, e: chosen_logprobs(h, e, targets, temperature), (hidden, head)
    )


def test_without_gradients_the_plain_operations_give_the_same() -> None:
    x, gain, weight, gate_up, down = tensors((3, 4), (4,), (5, 4), (3, 10), (4, 5))
    with torch.no_grad():
        plain = norm_linear(x, gain, weight, None, 1e-5), gated_down(x, gate_up, down, None)
    own = norm_linear(x, gain, weight, None, 1e-5), gated_down(x, gate_up, down, None)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, own, strict=True))
