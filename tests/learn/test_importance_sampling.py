"""Truncated importance sampling: what it does to the gradient if the sampler is not the policy.

The expectation over the sampler is exact: one row per token of a small vocabulary, weighted by its probability.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from glasshouse.learn.learner import summarize_differences
from glasshouse.learn.losses import LossInputs, get_algorithm

VOCABULARY = 6
POLICY = torch.tensor([0.5, -1.0, 0.3, 1.2, -0.4, 0.0])
SAMPLER = torch.tensor([-0.6, 0.4, 0.9, 0.1, 0.8, -1.5])
ADVANTAGES = torch.tensor([1.0, -0.5, 0.7, 0.2, -1.0, 0.4])


def expected_gradient(algorithm: str, sampler: Tensor, cap: float) -> Tensor:
    """The gradient of the loss in expectation over tokens of the sampler."""
    logits = POLICY.clone().requires_grad_()
    sampled = sampler.log_softmax(0)
    settings = replace(get_algorithm(algorithm).settings, importance_cap=cap)
    inputs = LossInputs(
        logprobs=logits.log_softmax(0)[:, None], sampler_logprobs=sampled[:, None],
        mask=torch.ones(VOCABULARY, 1), advantages=ADVANTAGES * sampled.exp() * VOCABULARY,
        rows=VOCABULARY, tokens=VOCABULARY, max_tokens=1, settings=settings,
    )  # fmt: skip
    loss, _ = get_algorithm(algorithm).loss(inputs)
    [gradient] = torch.autograd.grad(loss, [logits])
    return gradient


def on_policy_gradient() -> Tensor:
    """Minus the gradient of the expected advantage, differentiated directly."""
    logits = POLICY.clone().requires_grad_()
    [gradient] = torch.autograd.grad(-(logits.softmax(0) * ADVANTAGES).sum(), [logits])
    return gradient


@pytest.mark.parametrize("algorithm", ["reinforce", "cispo"])
def test_a_cap_above_all_ratios_gives_the_on_policy_gradient(algorithm: str) -> None:
    torch.testing.assert_close(expected_gradient(algorithm, SAMPLER, 1e6), on_policy_gradient())


@pytest.mark.parametrize("algorithm", ["reinforce", "cispo"])
def test_a_smaller_cap_trades_bias_for_bounded_weights(algorithm: str) -> None:
    exact = on_policy_gradient()
    ratios = POLICY.softmax(0) / SAMPLER.softmax(0)
    assert ratios.max() > 4  # some token would count that much
    errors = [
        (expected_gradient(algorithm, SAMPLER, cap) - exact).norm() / exact.norm()
        for cap in (1.0, 2.0, 4.0, 8.0)
    ]
    uncorrected = (expected_gradient(algorithm, SAMPLER, 0) - exact).norm() / exact.norm()
    assert all(a >= b for a, b in zip([uncorrected, *errors], errors, strict=False))
    assert errors[-1] < 1e-6 < errors[0] < uncorrected
    assert uncorrected > 1  # without the correction the gradient is more error than signal


def test_rounding_of_another_engine_changes_the_gradient_by_as_much() -> None:
    torch.manual_seed(0)
    sampler = POLICY + 1e-3 * torch.randn(VOCABULARY)
    exact = on_policy_gradient()
    uncorrected = (expected_gradient("reinforce", sampler, 0) - exact).norm() / exact.norm()
    corrected = (expected_gradient("reinforce", sampler, 2.0) - exact).norm() / exact.norm()
    assert 1e-5 < uncorrected < 1e-2
    assert corrected < 1e-5


def test_differences_of_sampler_and_learner_are_summarized() -> None:
    values = torch.arange(1.0, 101.0)
    parts = [values[60:], values[:60]]
    assert summarize_differences(parts) == {
        "logprob_diff_p50": 50.0, "logprob_diff_p99": 99.0, "logprob_diff_max": 100.0,
    }  # fmt: skip
    assert set(summarize_differences([]).values()) == {0.0}
