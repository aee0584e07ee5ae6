"""Prompts computed once: the same log-probabilities and the same gradients as computed with each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from glasshouse.learn.learner import add
from glasshouse.models import Policy
from glasshouse.models.logprobs import Batch, logprobs
from glasshouse.models.shared_prefix import Prefixes

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
    torch.set_default_dtype(torch.float64)  # so that only the arithmetic can differ
    try:
        weight = torch.randn(len(PAIRS), 5, generator=torch.Generator().manual_seed(1))
        expected, _ = logprobs(model, Batch.of(PAIRS), temperature)
        (expected * weight).sum().backward()
        plain = {n: p.grad.clone() for n, p in model.named_parameters()}
        model.zero_grad()

        prefixes = Prefixes(model, [prompt for prompt, _ in PAIRS])
        assert len(prefixes.numbers) == 3
        found, parameters = torch.zeros_like(expected), list(model.parameters())
        sums: list[torch.Tensor | None] = [None] * (len(parameters) + len(prefixes.leaves))
        for rows in ([0, 3], [1], [2, 4]):  # in micro-batches, as the learner goes
            part = prefixes.logprobs([PAIRS[r] for r in rows], temperature)
            loss = (part * weight[rows, : part.shape[1]]).sum()
            add(sums, torch.autograd.grad(loss, [*parameters, *prefixes.leaves], allow_unused=True))
            found[rows, : part.shape[1]] = part.detach()
        add(sums, prefixes.gradients(sums[len(parameters) :], parameters))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected.detach(), atol=1e-7, rtol=1e-6)
    for (n, _), gradient in zip(model.named_parameters(), sums, strict=False):
        torch.testing.assert_close(gradient, plain[n], atol=1e-7, rtol=1e-6)


def test_without_a_completion_that_needs_it_the_prompt_is_left_alone(
    tiny: Callable[..., Policy],
) -> None:
    model = tiny("llama").model
    prefixes = Prefixes(model, [(5, 6)])
    nothing: list[torch.Tensor | None] = [None] * len(prefixes.leaves)
    assert all(g is None for g in prefixes.gradients(nothing, list(model.parameters())))
