"""Memory estimates: they follow the learner's own code, and do not depend on how the model is traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Qwen3Config

from glasshouse.config.loading import load_config
from glasshouse.models import tuning
from glasshouse.training.memory import LEARN, estimate_generator, estimate_learner, estimate_memory
from glasshouse.training.memory_trace import PARTS, trace_memory
from glasshouse.training.traced_model import TracedModel, make_prompts

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300,
}  # fmt: skip
KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config, "gemma3": Gemma3TextConfig}
BASE = ("data.groups_per_step=1", "generate.group_size=2", "generate.max_tokens=16",
        "learn.microbatch_tokens=32", "evaluate.problems=0")  # fmt: skip


def model(kind: str = "llama", **changes: Any) -> TracedModel:
    return TracedModel(KINDS[kind](**(SHAPE | changes)))


def learner_parts(traced: TracedModel, *overrides: str) -> dict[str, int]:
    config = load_config([], [*BASE, *overrides])
    return estimate_learner(traced, config, make_prompts(20))[LEARN]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_extrapolated_peak_equals_that_of_the_whole_model(kind: str) -> None:
    traced = model(kind)
    assert traced.has_equal_layers
    config = load_config([], list(BASE))
    prompts = make_prompts(20)
    [quick] = estimate_memory(traced, config, prompts)
    unequal = model(kind)
    unequal.has_equal_layers = False
    [whole] = estimate_memory(unequal, config, prompts)
    assert quick.phases == whole.phases


def test_parts_that_are_kept_are_exact() -> None:
    traced = model()
    n = 4 * traced.parameters
    parts = learner_parts(traced)
    assert parts["reference"] == n
    assert parts["optimizer"] == 2 * n
    assert n <= parts["weights"] < n + 1000  # and the frequencies of the rotary embedding
    assert set(parts) == set(PARTS)


def test_settings_that_save_memory_save_it() -> None:
    traced = model("qwen3", num_hidden_layers=2)
    full = learner_parts(traced)
    recomputed = learner_parts(traced, "learn.activation_checkpointing=true", "dtype=bfloat16")
    assert recomputed["activations"] < full["activations"] / 2
    assert recomputed["reference"] == full["reference"] / 2
    adapters = learner_parts(traced, "learn.lora_rank=2")
    assert adapters["optimizer"] < full["optimizer"] / 3


def test_saving_needs_the_largest_tensor_or_with_adapters_a_copy_of_the_weights() -> None:
    traced = model()

    def copies(*overrides: str) -> int:
        config = load_config([], [*BASE, *overrides])
        return estimate_learner(traced, config, make_prompts(20))["checkpoint"]["weight_copies"]

    assert copies() == 4 * max(p.numel() for p in traced.whole.parameters())
    assert copies("learn.lora_rank=2") == 4 * traced.parameters


def test_a_large_model_is_packed_for_generating_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = model()

    def copies(*overrides: str) -> int:
        config = load_config([], [*BASE, *overrides])
        return estimate_generator(traced, config, make_prompts(20))["weight_copies"]

    fused, rounded = copies(), copies("dtype=bfloat16")
    monkeypatch.setattr(tuning, "LARGE_MODEL_PARAMETERS", 0)
    layers = [m for m in traced.whole.modules() if isinstance(m, torch.nn.Linear)]
    assert copies() == 4 * sum(layer.weight.numel() for layer in layers) > fused
    assert copies("generate.device=cuda") == fused
    assert copies("dtype=bfloat16") == rounded


def test_trace_counts_what_is_alive() -> None:
    with trace_memory(vocabulary=7) as trace:
        first = torch.empty(10, 10, device="meta")
        second = first + 1
        del first
        third = second @ second
        view = third[:5]
        del second, third
    assert sum(trace.current.values()) == 400
    assert sum(trace.peak()) == 800
    assert view.shape == (5, 10)


def test_sharding_divides_what_the_learner_keeps() -> None:
    traced = model(num_hidden_layers=2)
    whole = learner_parts(traced, "backend=monarch")
    half = learner_parts(traced, "backend=monarch", "monarch.learners=2", "learn.sharding=fsdp")
    for part in ("weights", "reference", "optimizer"):
        assert half[part] == whole[part] // 2
