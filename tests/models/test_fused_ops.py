"""Hand-written backward passes: values and gradients of the plain operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from glasshouse.models import fused_ops
from glasshouse.models.fused_ops import gated_mlp_output, rms_norm_linear, token_logprobs


def random_tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes
    ]


@pytest.mark.parametrize("has_bias", [False, True])
def test_rms_norm_linear_equals_the_plain_operations(has_bias: bool) -> None:
    x, gain, weight, bias = random_tensors((2, 3, 4), (4,), (5, 4), (5,))
    arguments = (x, gain, weight, bias if has_bias else None, 1e-5)
    plain = F.linear(F.rms_norm(x, (4,), gain, 1e-5), weight, arguments[3])
    assert torch.allclose(rms_norm_linear(*arguments), plain, atol=1e-12)
    assert torch.autograd.gradcheck(rms_norm_linear, arguments)


@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_mlp_output_equals_the_plain_operations(has_bias: bool) -> None:
    x, gate_up, down, bias = random_tensors((2, 3, 4), (2, 3, 10), (4, 5), (4,))
    arguments = (x, gate_up, down, bias if has_bias else None)
    gate, up = gate_up.chunk(2, -1)
    assert torch.allclose(
        gated_mlp_output(*arguments), x + F.linear(F.silu(gate) * up, down, arguments[3])
    )
    assert torch.autograd.gradcheck(gated_mlp_output, arguments)


@pytest.mark.parametrize("large_from", [8192, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs_equal_a_log_softmax(
    monkeypatch: pytest.MonkeyPatch, temperature: float, large_from: int
) -> None:
    monkeypatch.setattr(fused_ops, "LARGE_VOCABULARY", large_from)
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


def test_results_without_gradients_are_the_same() -> None:
    x, gain, weight, gate_up, down = random_tensors((3, 4), (4,), (5, 4), (3, 10), (4, 5))
    with torch.no_grad():
        plain = (
            rms_norm_linear(x, gain, weight, None, 1e-5),
            gated_mlp_output(x, gate_up, down, None),
        )
    own = rms_norm_linear(x, gain, weight, None, 1e-5), gated_mlp_output(x, gate_up, down, None)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, own, strict=True))
