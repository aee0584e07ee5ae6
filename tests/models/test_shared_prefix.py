"""Shared prompts: the same log-probabilities and gradients as with one prompt per completion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy
from glasshouse.models.shared_prefix import SharedPrefixes

PAIRS = [
    ((5, 6, 7), (8, 9, 10, 11)),
    ((5, 6, 7), (12,)),
    ((20, 21, 22, 23, 24), (9, 9, 30)),
    ((40,), (8, 12, 13, 14, 15)),
    ((20, 21, 22, 23, 24), (31, 32)),
]


@pytest.mark.parametrize(
    "name", ["llama", "llama grouped untied", "llama biased", "qwen2", "qwen3"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_shared_prompts_change_neither_values_nor_gradients(
    tiny: Callable[..., Policy], name: str, temperature: float
) -> None:
    model = tiny(name).model.double()
    torch.set_default_dtype(torch.float64)  # so that rounding does not matter
    try:
        weight = torch.randn(len(PAIRS), 5, generator=torch.Generator().manual_seed(1))
        expected, _ = compute_logprobs(model, CompletionBatch.from_pairs(PAIRS), temperature)
        (expected * weight).sum().backward()
        expected_gradients = [p.grad.clone() for p in model.parameters()]

        prefixes = SharedPrefixes(model, [prompt for prompt, _ in PAIRS])
        assert len(prefixes.prompt_index) == 3
        result = torch.zeros_like(expected)
        for rows in ([0, 3], [1], [2, 4]):  # in microbatches, as in the learner
            part = prefixes.completion_logprobs([PAIRS[r] for r in rows], temperature)
            prefixes.backward((part * weight[rows, : part.shape[1]]).sum())
            result[rows, : part.shape[1]] = part.detach()
        gradients = prefixes.parameter_gradients()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(result, expected.detach(), atol=1e-7, rtol=1e-6)
    for own, plain in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(own, plain, atol=1e-7, rtol=1e-6)


def test_prompt_without_leaf_gradients_gets_none(
    tiny: Callable[..., Policy],
) -> None:
    model = tiny("llama").model
    prefixes = SharedPrefixes(model, [(5, 6)])
    assert all(g is None for g in prefixes.parameter_gradients())
