"""What is computed differently for large models: the same values and gradients as transformers' plain forward.

Tiny models count as large here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from glasshouse.config.schema import LearnConfig
from glasshouse.generate.llama_decoder import LlamaDecoder
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample, split_into_blocks
from glasshouse.models import devices, llama
from glasshouse.models.adapters import add_adapters
from glasshouse.models.logprobs import CompletionBatch, compute_logprobs
from glasshouse.models.policy import Policy
from glasshouse.models.shared_prefix import SharedPrefixes
from glasshouse.types import Request, SamplingParams

Tiny = Callable[..., Policy]
FLOAT32, FLOAT64 = {"atol": 1e-4, "rtol": 1e-3}, {"atol": 1e-7, "rtol": 1e-6}
"""Tolerances: transformers' norms compute in float32 even in a float64 model."""
START = (5, 6, 7, 8)
PAIRS = [
    ((*START, 20), (8, 9, 10, 11)),
    ((*START, 20), (12,)),
    ((*START, 20, 22, 23), (9, 9, 30)),
    ((*START, 40, 41), (8, 12, 13, 14, 15)),
    ((*START, 20, 22, 23), (31, 32)),
]


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LARGE_MODEL_PARAMETERS", 0)


@pytest.fixture
def float64() -> object:
    torch.set_default_dtype(torch.float64)  # so that rounding does not matter
    yield
    torch.set_default_dtype(torch.float32)


def compute_plain_logprobs(model: torch.nn.Module, temperature: float) -> torch.Tensor:
    """With transformers' forward, one row at a time: no padding, no cache, no fused weights."""
    rows = torch.zeros(len(PAIRS), 5)
    for row, (prompt, completion) in enumerate(PAIRS):
        tokens = torch.tensor([[*prompt, *completion]])
        logits = model(input_ids=tokens, use_cache=False).logits[0] / temperature
        positions = torch.arange(len(prompt) - 1, tokens.shape[1] - 1)
        rows = rows.index_put(
            (torch.tensor(row), torch.arange(len(completion))),
            logits.log_softmax(-1)[positions, tokens[0, positions + 1]],
        )
    return rows


def add_random_adapters(policy: Policy, targets: tuple[str, ...] = ()) -> Policy:
    """With adapters whose second factor is not zero, so that both factors have gradients."""
    adapted = add_adapters(policy, rank=3, seed=0, targets=targets)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return adapted


@pytest.mark.parametrize(
    ("name", "targets", "temperature", "recompute"),
    [
        ("llama", None, 0.7, False),
        ("llama grouped untied", None, 1.0, True),
        ("llama biased", None, 0.7, True),
        ("qwen2", None, 1.0, False),
        ("qwen3", None, 1.0, False),
        ("llama grouped untied", (), 1.0, False),
        ("qwen2", (), 0.7, True),
        ("qwen3", ("q_proj", "v_proj", "up_proj"), 1.0, False),
        ("llama biased", ("down_proj",), 1.0, True),
    ],
)
def test_shared_prompts_and_adapters_have_the_gradients_of_a_plain_forward(
    tiny: Tiny, float64: None, name: str,
    targets: tuple[str, ...] | None, temperature: float, recompute: bool,
) -> None:  # fmt: skip
    policy = tiny(name)
    policy = policy if targets is None else add_random_adapters(policy, targets)
    model = policy.model.double()
    assert llama.is_supported(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    weight = torch.randn(len(PAIRS), 5, generator=torch.Generator().manual_seed(1))
    expected = compute_plain_logprobs(model, temperature)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), trained)
    unshared, _ = compute_logprobs(model, CompletionBatch.from_pairs(PAIRS), temperature)
    unshared_gradients = torch.autograd.grad((unshared * weight).sum(), trained)

    prefixes = SharedPrefixes(model, [prompt for prompt, _ in PAIRS], recompute=recompute)
    assert prefixes.common == len(START)
    assert all(gradient is None for gradient in prefixes.parameter_gradients())
    result = torch.zeros_like(expected)
    for rows in ([0, 3], [1], [2, 4]):  # in microbatches, as in the learner
        part = prefixes.completion_logprobs([PAIRS[r] for r in rows], temperature)
        prefixes.backward((part * weight[rows, : part.shape[1]]).sum())
        result[rows, : part.shape[1]] = part.detach()
    gradients = prefixes.parameter_gradients()
    assert all(parameter.grad is None for parameter in trained)
    torch.testing.assert_close(result, expected.detach(), **FLOAT32)
    torch.testing.assert_close(result, unshared.detach(), **FLOAT64)
    for gradient, plain, own in zip(gradients, expected_gradients, unshared_gradients, strict=True):
        torch.testing.assert_close(gradient, plain, **FLOAT32)
        torch.testing.assert_close(gradient, own, **FLOAT64)


def test_adapters_outside_the_blocks_use_the_forward_of_transformers(tiny: Tiny) -> None:
    policy = add_adapters(tiny("llama grouped untied"), rank=2, seed=0, targets=("lm_head",))
    assert not llama.is_supported(policy.model)


@pytest.mark.parametrize("adapted", [False, True])
def test_generated_logprobs_equal_a_plain_forward(tiny: Tiny, adapted: bool) -> None:
    policy = tiny("llama grouped untied")
    policy = add_random_adapters(policy) if adapted else policy
    generator = TorchGenerator(policy)
    prompts = list(dict.fromkeys(prompt for prompt, _ in PAIRS))
    groups = generator.generate(
        [Request(prompt=p, noise_keys=(1, 2)) for p in prompts], SamplingParams(max_tokens=6)
    )
    assert isinstance(generator._decoder, LlamaDecoder)
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            tokens = torch.tensor([[*prompt, *completion.tokens]])
            logprobs = policy.model(input_ids=tokens).logits[0].log_softmax(-1)
            before = torch.arange(len(prompt) - 1, tokens.shape[1] - 1)
            plain = logprobs[before, tokens[0, before + 1]].detach()
            torch.testing.assert_close(
                torch.tensor(completion.logprobs), plain, atol=2e-5, rtol=1e-4
            )


def make_samples() -> list[TrainingSample]:
    return [
        TrainingSample(
            prompt=prompt, tokens=tokens, sampler_logprobs=[-2.0] * len(tokens),
            advantage=(-1.0) ** row,
        )
        for row, (prompt, tokens) in enumerate(PAIRS)
    ]  # fmt: skip


@pytest.mark.parametrize("adapted", [False, True])
def test_an_update_with_a_kl_term_is_that_of_the_kernel(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, adapted: bool
) -> None:
    """Both the metrics and the new weights, up to rounding; with adapters both take the general path."""
    reports, weights = [], []
    for threshold in (0, 1 << 40):
        monkeypatch.setattr(devices, "LARGE_MODEL_PARAMETERS", threshold)
        policy = tiny("qwen3")
        policy = add_random_adapters(policy) if adapted else policy
        config = LearnConfig(kl_coef=0.1, learning_rate=1e-3, microbatch_tokens=16)
        learner = Learner(policy, config, max_tokens=8, steps=3, kl_every=1)
        reports.append([learner.update(make_samples()) for _ in range(3)])
        weights.append(policy.weights())
    for large, small in zip(*reports, strict=True):
        assert large.keys() == small.keys()
        for name, value in large.items():
            assert value == pytest.approx(small[name], rel=1e-3, abs=1e-5), name
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("threshold", "steps", "kl_every", "measured"),
    [(0, 20, 0, [1, 10, 20]), (0, 7, 3, [1, 3, 6, 7]), (1 << 40, 3, 0, [1, 2, 3])],
)
def test_kl_is_measured_in_every_tenth_step_of_a_large_model(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, threshold: int, steps: int, kl_every: int,
    measured: list[int],
) -> None:  # fmt: skip
    monkeypatch.setattr(devices, "LARGE_MODEL_PARAMETERS", threshold)
    learner = Learner(tiny("llama"), LearnConfig(), max_tokens=8, steps=steps, kl_every=kl_every)
    samples = make_samples()[:2]
    assert [n for n in range(1, steps + 1) if "kl" in learner.update(samples)] == measured


def test_common_tokens_leave_each_prompt_one_of_its_own() -> None:
    assert count_common_tokens([(1, 2, 3), (1, 2, 4, 5)]) == 2
    assert count_common_tokens([(1, 2), (1, 2, 4)]) == 1
    assert count_common_tokens([(1,), (2,)]) == 0
    assert count_common_tokens([(1, 2, 3)]) == 0


def test_common_tokens_do_not_split_blocks() -> None:
    samples = make_samples()
    assert len(split_into_blocks(samples, max_tokens=6)) == 3
    assert len(split_into_blocks(samples, max_tokens=6, common=len(START))) == 1
