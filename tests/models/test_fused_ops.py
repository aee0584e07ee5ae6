"""Hand-written backward passes: values and gradients of the plain operations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from glasshouse.models import fused_ops
from glasshouse.models.fused_ops import (
    LinearWeights,
    LowRank,
    embed,
    gated_mlp_output,
    linear,
    rms_norm_linear,
    split_and_rotate,
    token_logprobs,
)

both_sizes = pytest.mark.parametrize("large", [False, True])


def random_tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes
    ]


@both_sizes
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_equals_the_plain_operation(has_bias: bool, large: bool) -> None:
    x, weight, bias = random_tensors((2, 3, 4), (5, 4), (5,))
    arguments = (x, weight, bias) if has_bias else (x, weight)

    def own(x: torch.Tensor, *layer: torch.Tensor) -> torch.Tensor:
        return linear(x, LinearWeights(*layer), large=large)

    assert torch.allclose(own(*arguments), F.linear(*arguments))
    assert torch.autograd.gradcheck(own, arguments)


@both_sizes
def test_gradients_of_adapters_are_those_of_their_product(large: bool) -> None:
    """The weight is passed merged and frozen; gradients reach x and the factors as if it had been computed."""
    x, base, gain, down, up = random_tensors((2, 3, 4), (5, 4), (4,), (2, 4), (5, 2))
    base, gain = base.detach(), gain.detach()
    grad = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    merged = LinearWeights((base + up @ down).detach(), None, LowRank(down, up))
    for own, normed in (
        (linear(x, merged, large=large), x),
        (
            rms_norm_linear(x, gain, merged, 1e-5, large=large),
            F.rms_norm(x, (4,), gain, 1e-5),
        ),
    ):
        plain = F.linear(normed, base + up @ down)
        assert torch.allclose(own, plain)
        expected = torch.autograd.grad(plain, (x, down, up), grad)
        gradients = torch.autograd.grad(own, (x, down, up), grad)
        assert all(torch.allclose(a, b) for a, b in zip(gradients, expected, strict=True))


@both_sizes
@pytest.mark.parametrize("has_bias", [False, True])
def test_rms_norm_linear_equals_the_plain_operations(has_bias: bool, large: bool) -> None:
    x, gain, weight, bias = random_tensors((2, 3, 4), (4,), (5, 4), (5,))
    arguments = (x, gain, weight, bias) if has_bias else (x, gain, weight)
    plain = F.linear(F.rms_norm(x, (4,), gain, 1e-5), *arguments[2:])

    def own(x: torch.Tensor, gain: torch.Tensor, *layer: torch.Tensor) -> torch.Tensor:
        return rms_norm_linear(x, gain, LinearWeights(*layer), 1e-5, large=large)

    assert torch.allclose(own(*arguments), plain, atol=1e-12)
    assert torch.autograd.gradcheck(own, arguments)


@both_sizes
@pytest.mark.parametrize("has_bias", [False, True])
def test_gated_mlp_output_equals_the_plain_operations(has_bias: bool, large: bool) -> None:
    x, gate_up, down, bias = random_tensors((2, 3, 4), (2, 3, 10), (4, 5), (4,))
    arguments = (x, gate_up, down, bias) if has_bias else (x, gate_up, down)
    gate, up = gate_up.chunk(2, -1)

    def own(x: torch.Tensor, gate_up: torch.Tensor, *down: torch.Tensor) -> torch.Tensor:
        return gated_mlp_output(x, gate_up, LinearWeights(*down), large=large)

    assert torch.allclose(own(*arguments), x + F.linear(F.silu(gate) * up, *arguments[2:]))
    assert torch.autograd.gradcheck(own, arguments)


def test_leaves_add_gradients_in_place() -> None:
    """From the second backward pass on, and with the sums that autograd would give. Parameters never do: their
    gradients may be asked for by `torch.autograd.grad`."""
    table, weight, down, head = random_tensors((9, 4), (10, 4), (4, 5), (9, 4))
    tokens, targets = torch.tensor([[1, 2, 2], [0, 8, 3]]), torch.tensor([4, 0, 8, 1, 1, 2])

    def run(*weights: torch.Tensor, temperature: float) -> torch.Tensor:
        x = embed(tokens, weights[0], 3, large=True)
        gate_up = linear(x, LinearWeights(weights[1]), large=True)
        x = gated_mlp_output(x, gate_up, LinearWeights(weights[2]), large=True)
        found = token_logprobs(x.flatten(0, 1), weights[3], targets, temperature, large=True)
        return found.square().sum()

    def plain(*weights: torch.Tensor, temperature: float) -> torch.Tensor:
        x = F.embedding(tokens, weights[0], 3)
        gate, up = F.linear(x, weights[1]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, weights[2])
        logits = F.linear(x.flatten(0, 1), weights[3]) / temperature
        return logits.log_softmax(-1)[torch.arange(6), targets].square().sum()

    leaves = (table, weight, down, head)
    run(*leaves, temperature=1.0).backward()
    places = [leaf.grad.data_ptr() for leaf in leaves]
    assert all(fused_ops.adds_gradient(leaf) for leaf in leaves)
    run(*leaves, temperature=0.7).backward()
    assert [leaf.grad.data_ptr() for leaf in leaves] == places
    expected = torch.autograd.grad(
        plain(*leaves, temperature=1.0) + plain(*leaves, temperature=0.7), leaves
    )
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)
    parameter = torch.nn.Parameter(weight.detach())
    parameter.grad = torch.zeros_like(parameter)
    [gradient] = torch.autograd.grad(
        linear(table, LinearWeights(parameter), large=True).sum(), parameter
    )
    assert gradient.any()
    assert not parameter.grad.any()


def test_split_and_rotate_has_the_bits_of_the_plain_operations() -> None:
    """In float32, values and gradients: published results depend on them."""
    generator = torch.Generator().manual_seed(0)
    joined = torch.randn(2, 7, 4 + 2 * 2, 16, generator=generator, requires_grad=True)
    cos, sin = torch.randn(2, 7, 1, 16, generator=generator)

    def plain() -> tuple[torch.Tensor, ...]:
        qk = joined[..., :6, :]
        swapped = torch.cat([qk[..., 8:], qk[..., :8]], dim=-1)
        rotated = torch.addcmul(qk * cos, swapped, sin)
        return rotated[..., :4, :], rotated[..., 4:, :], joined[..., 6:, :]

    expected, own = plain(), split_and_rotate(joined, cos, sin, 4, 2)
    # as attention returns them: heads before positions in memory
    grads = [
        torch.randn(2, tensor.shape[2], 7, 16, generator=generator).transpose(1, 2)
        for tensor in expected
    ]
    assert all(torch.equal(a, b) for a, b in zip(own, expected, strict=True))
    [gradient] = torch.autograd.grad(own, joined, grads)
    assert torch.equal(gradient, *torch.autograd.grad(expected, joined, grads))
    with torch.no_grad():
        again = split_and_rotate(joined, cos, sin, 4, 2)
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))


@both_sizes
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs_equal_a_log_softmax(temperature: float, large: bool) -> None:
    hidden, head = random_tensors((6, 4), (9, 4))
    targets = torch.tensor([0, 3, 8, 8, 1, 2])
    grad = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, -1.0], dtype=torch.float64)
    plain = (hidden @ head.t() / temperature).log_softmax(-1)[torch.arange(6), targets]
    own = token_logprobs(hidden, head, targets, temperature, large=large)
    assert torch.allclose(own, plain)
    expected = torch.autograd.grad(plain, (hidden, head), grad)
    gradients = torch.autograd.grad(own, (hidden, head), grad, retain_graph=True)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(gradients, expected, strict=True))
    with pytest.raises(RuntimeError, match="inplace"):  # the first pass used the memory
        torch.autograd.grad(own, (hidden, head), grad)


@both_sizes
def test_results_without_gradients_are_the_same(large: bool) -> None:
    x, gain, weight, gate_up, down = random_tensors((3, 4), (4,), (5, 4), (3, 10), (4, 5))

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        return (
            rms_norm_linear(x, gain, LinearWeights(weight), 1e-5, large=large),
            gated_mlp_output(x, gate_up, LinearWeights(down), large=large),
        )

    with torch.no_grad():
        plain = compute()
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(plain, compute(), strict=True))
