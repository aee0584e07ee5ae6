"""Sampling follows the model's distribution: chi-square tests, which wrong samplers must fail.

All draws are keyed, so each test has one outcome; the thresholds bound how unlikely it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from glasshouse import randomness
from glasshouse.generate.sampling import sample_tokens, truncate_probabilities
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.models.policy import Policy
from glasshouse.types import Request, SamplingParams

Tiny = Callable[..., Policy]
PLAIN = SamplingParams(max_tokens=1)
PLAUSIBLE = 1e-3
"""The p-value of a correct sampler is above it."""


def p_value(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of `tokens` under `probabilities`; rare tokens share a bin, impossible ones give 0."""
    counts = np.bincount(tokens, minlength=len(probabilities)).astype(float)
    if counts[probabilities == 0].any():
        return 0.0
    expected = probabilities * len(tokens)
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    expected_counts = np.append(expected[~rare], expected[rare].sum())
    if expected_counts[-1] == 0:
        observed, expected_counts = observed[:-1], expected_counts[:-1]
    return float(
        stats.chisquare(observed, expected_counts * observed.sum() / expected_counts.sum()).pvalue
    )


def softmax(logits: torch.Tensor, temperature: float = 1.0) -> np.ndarray:
    return (logits.double() / temperature).softmax(-1).numpy()


def noise(rows: int, position: int = 0) -> torch.Tensor:
    keys = np.array([randomness.key("noise", 0, row) for row in range(rows)], dtype=np.uint64)
    return torch.from_numpy(randomness.uniforms(keys, position, 1)[:, 0]).float()


def draw(logits: torch.Tensor, sampling: SamplingParams, uniform: torch.Tensor) -> np.ndarray:
    return sample_tokens(logits.expand(len(uniform), -1), uniform, sampling)[0].numpy()


LOGITS = 1.5 * torch.randn(30, generator=torch.Generator().manual_seed(3))
ROWS = 20_000

# ── sample_tokens ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sampling",
    [
        replace(PLAIN, top_k=5),
        replace(PLAIN, top_p=0.8),
        replace(PLAIN, min_p=0.1),
        replace(PLAIN, temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
    ],
)
def test_truncated_sampling_follows_the_renormalised_distribution(sampling: SamplingParams) -> None:
    kept = truncate_plainly(softmax(LOGITS, sampling.temperature), sampling)
    assert 1 < np.count_nonzero(kept) < len(LOGITS)
    assert p_value(draw(LOGITS, sampling, noise(ROWS)), kept / kept.sum()) > PLAUSIBLE


# ── through the generator ────────────────────────────────────────────────────────────────────────

PAIRS, VOCABULARY = 6000, 9


def sample_pairs(policy: Policy, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """The first two tokens of many completions as one number each, and their joint distribution by
    transformers' forward."""
    policy.model.generation_config.eos_token_id = []
    prompt = (3, 1, 4, 1, 5)
    keys = tuple(randomness.key("pairs", i) for i in range(PAIRS))
    sampling = SamplingParams(max_tokens=2, temperature=temperature)
    [got] = TorchGenerator(policy).generate([Request(prompt=prompt, noise_keys=keys)], sampling)
    tokens = np.array([c.tokens for c in got])
    with torch.no_grad():
        texts = torch.tensor([[*prompt, token] for token in range(VOCABULARY)])
        logits = policy.model(texts).logits
    first, second = softmax(logits[0, -2], temperature), softmax(logits[:, -1], temperature)
    return tokens[:, 0] * VOCABULARY + tokens[:, 1], (first[:, None] * second).ravel()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", ["llama grouped untied", "gpt2"])
def test_first_two_tokens_follow_the_distribution_of_the_model(
    tiny: Tiny, name: str, temperature: float
) -> None:
    got, expected = sample_pairs(tiny(name, vocab_size=VOCABULARY), temperature)
    assert np.count_nonzero(expected * PAIRS >= 10) > 15
    first = expected.reshape(VOCABULARY, VOCABULARY).sum(1)
    assert p_value(got // VOCABULARY, first) > PLAUSIBLE
    assert p_value(got, expected) > PLAUSIBLE


# ── truncation, greedy, extremes ─────────────────────────────────────────────────────────────────


def truncate_plainly(probabilities: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Top-k, then top-p of the remaining tokens, then min-p, one token at a time."""
    kept = sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.top_p < 1:
        goal = sampling.top_p * sum(probabilities[i] for i in kept)
        reached, enough = 0.0, []
        for i in kept:
            enough.append(i)
            reached += probabilities[i]
            if reached >= goal:
                break
        kept = enough
    if sampling.min_p:
        kept = [i for i in kept if probabilities[i] >= sampling.min_p * probabilities.max()]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result


@pytest.mark.parametrize("top_k", [0, 1, 4, 100])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.5, 1.0])
def test_truncation_equals_a_plain_implementation(top_k: int, top_p: float, min_p: float) -> None:
    sampling = replace(PLAIN, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = 2 * torch.randn(40, 25, generator=torch.Generator().manual_seed(5))
    probabilities = logits.softmax(-1)
    expected = [truncate_plainly(row, sampling) for row in probabilities.double().numpy()]
    got = (
        truncate_probabilities(probabilities, sampling) if sampling.is_truncated else probabilities
    )
    np.testing.assert_allclose(got.numpy(), np.array(expected), rtol=1e-6)


def test_logprobs_are_at_the_temperature_and_before_truncation() -> None:
    """At temperature 1 if greedy, which takes the most likely token whatever the noise."""
    logits = torch.randn(200, 20, generator=torch.Generator().manual_seed(1))
    sampling = replace(PLAIN, temperature=0.7, top_k=3, top_p=0.9, min_p=0.1)
    tokens, logprobs = sample_tokens(logits, noise(200), sampling)
    expected = (logits / 0.7).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected)
    tokens, logprobs = sample_tokens(logits, noise(200), replace(PLAIN, temperature=0))
    assert tokens.tolist() == logits.argmax(-1).tolist()
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).amax(-1))


EXTREMES = [-math.inf, -1e4, -200.0, -87.5, -1.0, 0.0, 1.0, 87.5, 1e4]
EDGES = [2.0**-54, 1e-12, 0.25, 0.5, 1 - 2.0**-24, 1.0]  # 1.0: what float32 makes of 1 - 2^-54


@given(
    st.lists(st.sampled_from(EXTREMES), min_size=1, max_size=12).filter(lambda x: max(x) > -1e4),
    st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    st.sampled_from([{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.3}]),
)
def test_token_of_zero_probability_is_never_sampled(
    logits: list[float], temperature: float, options: dict[str, Any]
) -> None:
    sampling = replace(PLAIN, temperature=temperature, **options)
    row = torch.tensor(logits)
    tokens, logprobs = sample_tokens(row.expand(len(EDGES), -1), torch.tensor(EDGES), sampling)
    probabilities = (row / (temperature or 1.0)).softmax(-1)
    if options and temperature:
        probabilities = truncate_probabilities(probabilities[None], sampling)[0]
    assert (probabilities[tokens] > 0).all()
    assert logprobs.isfinite().all()


@pytest.mark.parametrize("size", [8192, 10_001])
def test_sampling_by_block_gives_the_same_tokens(size: int) -> None:
    """The tokens of the cumulative distribution in float64, but where the noise is within rounding of a
    border; tokens of probability 0 never."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, size, generator=generator)
    logits[:, torch.randperm(size, generator=generator)[: size // 2]] = -torch.inf
    logits[:, -1] = 11.0  # likely, at the border of the last block
    uniform = noise(len(logits))
    tokens, logprobs = sample_tokens(logits, uniform, PLAIN)
    expected = logits.double().log_softmax(-1)
    assert torch.isfinite(logprobs).all()
    assert (tokens == size - 1).sum() > 10
    torch.testing.assert_close(
        logprobs, expected.gather(-1, tokens[:, None])[:, 0].float(), atol=1e-5, rtol=1e-5
    )
    cumulative = expected.exp().cumsum(-1)
    plain = torch.searchsorted(cumulative, uniform[:, None].double())[:, 0]
    assert (tokens == plain).float().mean() > 0.99
    for extreme in (torch.finfo(torch.float32).tiny, 1 - 2**-24):
        tokens, _ = sample_tokens(logits, torch.full_like(uniform, extreme), PLAIN)
        assert torch.isfinite(logits.gather(-1, tokens[:, None])).all()
