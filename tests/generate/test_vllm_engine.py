"""The vLLM engine on a stand-in for vLLM: tokens, log-probabilities, stop reasons, weights, bad input.

`make proofs ONLY=vllm` shows the same on vLLM itself.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generate import stand_in_vllm

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, ModelError, RunError
from glasshouse.generate.engines import make_generator
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.generate.vllm import engine
from glasshouse.generate.vllm.engine import VllmGenerator, checksum_weights, merge_weights
from glasshouse.models.adapters import add_adapters
from glasshouse.models.policy import Policy, load_policy, save_policy
from glasshouse.types import FinishReason, Request, SamplingParams

Tiny = Callable[..., Policy]
REQUESTS = [
    Request(prompt=(5, 9, 17), noise_keys=(1, 2, 3)),
    Request(prompt=(7,), noise_keys=(4, 2**64 - 1)),
]


@pytest.fixture
def served(tiny: Tiny, tmp_path: Path) -> Policy:
    """A small model with heads that vLLM can serve, loaded from a folder."""
    policy = tiny(
        "llama", hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32
    )
    save_policy(policy, tmp_path / "model")
    return load_policy(str(tmp_path / "model"))


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> type[stand_in_vllm.LLM]:
    return stand_in_vllm.install(monkeypatch)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=6),
        SamplingParams(max_tokens=6, temperature=0.6, top_k=20, top_p=0.9, min_p=0.01),
        SamplingParams(max_tokens=6, temperature=0),
    ],
    ids=["sampled", "truncated", "greedy"],
)
def test_the_same_keys_give_the_completions_of_the_torch_engine(
    served: Policy, llm: Any, sampling: SamplingParams
) -> None:
    expected = TorchGenerator(served).generate(REQUESTS, sampling)
    third = expected[0][0].tokens[2]
    served.model.generation_config.eos_token_id = [third]  # one of them ends there
    expected = TorchGenerator(served).generate(REQUESTS, sampling)
    got = VllmGenerator(served, GenerateConfig()).generate(REQUESTS, sampling)
    assert {c.finish_reason for group in expected for c in group} >= {FinishReason.END}
    for expected_group, got_group in zip(expected, got, strict=True):
        for a, b in zip(expected_group, got_group, strict=True):
            assert (a.tokens, a.finish_reason, a.policy_version) == (
                b.tokens,
                b.finish_reason,
                b.policy_version,
            )
            assert b.logprobs == pytest.approx(a.logprobs, abs=1e-4)


def test_a_stop_string_ends_a_completion_with_its_last_token(served: Policy, llm: Any) -> None:
    free = TorchGenerator(served).generate(REQUESTS, SamplingParams(max_tokens=12))
    text = next(t for c in free[0] if (t := served.decode(c.tokens[:3])).strip())
    sampling = SamplingParams(max_tokens=12, stop=(text[-2:],))
    expected = TorchGenerator(served).generate(REQUESTS, sampling)
    got = VllmGenerator(served, GenerateConfig()).generate(REQUESTS, sampling)
    assert FinishReason.STOP in {c.finish_reason for group in got for c in group}
    assert [[(c.tokens, c.finish_reason) for c in g] for g in got] == [
        [(c.tokens, c.finish_reason) for c in g] for g in expected
    ]


def test_new_weights_are_used_with_their_version_and_checksum(served: Policy, llm: Any) -> None:
    generator = VllmGenerator(served, GenerateConfig())
    sampling = SamplingParams(max_tokens=6)
    before = generator.generate(REQUESTS, sampling)
    first = generator.checksum
    newer = replace(served, model=copy.deepcopy(served.model))
    with torch.no_grad():
        for parameter in newer.model.parameters():
            parameter.mul_(1.3)
    generator.load_weights(newer.weights(), 5)
    after = generator.generate(REQUESTS, sampling)
    expected = TorchGenerator(newer).generate(REQUESTS, sampling)
    assert before != after
    assert [[c.tokens for c in g] for g in after] == [[c.tokens for c in g] for g in expected]
    assert {c.policy_version for group in after for c in group} == {5}
    assert generator.checksum not in ("", first)
    assert generator.checksum == checksum_weights(merge_weights(newer.model, torch.float32))
    assert llm.made[0].calls == ["load_policy", "reset", "load_policy", "reset"]


def test_bad_weights_are_refused_and_the_engine_keeps_its_own(served: Policy, llm: Any) -> None:
    """A stale version, one flipped bit, and a tensor that does not arrive."""
    generator = VllmGenerator(served, GenerateConfig())
    generator.load_weights(served.weights(), 3)
    file, write, checksum = generator._file, generator._file.write, generator.checksum

    def flip_a_bit(weights: Any, version: int) -> None:
        write(weights, version)
        byte = os.pread(file.file.fileno(), 1, 20_000)
        os.pwrite(file.file.fileno(), bytes([byte[0] ^ 1]), 20_000)

    damages: dict[str, Any] = {
        "holds 3": lambda weights, version: write(weights, 3),
        "checksum": flip_a_bit,
    }
    for message, damage in damages.items():
        file.write = damage  # type: ignore[method-assign]
        with pytest.raises(RunError, match=message):
            generator.load_weights(served.weights(), 4)
        assert (generator.version, generator.checksum) == (3, checksum)
    file.write = write  # type: ignore[method-assign]
    load = llm.made[0].model.load_weights
    llm.made[0].model.load_weights = lambda weights: load(list(weights)[:-1])
    with pytest.raises(RunError, match="1 tensors did not arrive"):
        generator.load_weights(served.weights(), 4)


def test_sleeping_frees_memory_during_an_update(
    served: Policy, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "check_model", lambda policy, config: None)  # there is no GPU here
    generator = VllmGenerator(served, GenerateConfig(vllm={"sleep": True}))
    generator.load_weights(served.weights(), 0)
    llm.made[0].calls.clear()
    generator.free()
    generator.load_weights(served.weights(), 1)
    calls = ["sleep 2", "wake weights", "load_policy", "wake kv_cache", "reset"]
    assert llm.made[0].calls == calls
    assert llm.made[0].arguments["enable_sleep_mode"]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda output: output.token_ids.__setitem__(0, 10**6), "outside the vocabulary"),
        (lambda output: output.token_ids.clear(), "empty"),
        (lambda output: output.logprobs.logprobs.__setitem__(0, float("nan")), "not finite"),
        (lambda output: setattr(output, "finish_reason", "abort"), "finish reason 'abort'"),
    ],
    ids=["token", "empty", "nan", "reason"],
)
def test_nonsense_is_not_passed_on(served: Policy, llm: Any, spoil: Any, problem: str) -> None:
    generator = VllmGenerator(served, GenerateConfig())
    llm.made[0].spoil = spoil
    with pytest.raises(RunError, match=f"vLLM returned .*{problem}"):
        generator.generate(REQUESTS, SamplingParams(max_tokens=4))


def test_settings_reach_vllm(served: Policy, llm: Any) -> None:
    config = GenerateConfig(kv_cache_mb=64, vllm={"tensor_parallel_size": 2})
    VllmGenerator(served, config)
    arguments = llm.made[0].arguments
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["kv_cache_memory_bytes"] == 64 * 2**20
    assert arguments["block_size"] == 32
    assert arguments["load_format"] == "dummy"


def test_too_long_a_prompt_names_the_keys_to_change(served: Policy, llm: Any) -> None:
    generator = VllmGenerator(served, GenerateConfig())
    with pytest.raises(ConfigError, match=r"96 tokens.*generate\.max_tokens"):
        generator.generate(REQUESTS, SamplingParams(max_tokens=95))


def test_adapters_are_merged_on_the_way(tiny: Tiny) -> None:
    pytest.importorskip("peft")
    policy = add_adapters(tiny("llama"), rank=2, seed=0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    got = merge_weights(policy.model, torch.float32)
    merged = dict(copy.deepcopy(policy.model).merge_and_unload().named_parameters())
    assert got.keys() == merged.keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(got[name], tensor.detach())


def test_the_checksum_sees_names_and_every_bit() -> None:
    a, b = torch.zeros(3), torch.ones(2, dtype=torch.bfloat16)
    different = [{"a": a, "b": b}, {"b": a, "a": b}, {"a": a, "c": b}, {"a": -a, "b": b}]
    assert len({checksum_weights(weights) for weights in different}) == len(different)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────


def test_without_vllm_a_run_ends_with_a_sentence(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "find_version", lambda: None)
    options = ["model=models/mock", "generate.engine=vllm", f"out={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as exit_info:
        raise SystemExit(main(["train", *options]))
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert "generate.engine" in error
    assert "make vllm-setup" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("version", ["0.31.0", "0.33.1", "1.0.0"])
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    stand_in_vllm.install(monkeypatch, version)
    with pytest.raises(ConfigError, match=rf"vLLM {version}.*0\.32"):
        engine.import_vllm(in_process=True)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"sleep": True}, r"generate\.vllm\.sleep"),
        ({"tensor_parallel_size": 3}, r"generate\.vllm\.tensor_parallel_size"),
    ],
)
def test_settings_that_this_machine_cannot_serve_name_their_key(
    served: Policy, settings: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        engine.check_model(served, GenerateConfig(vllm=settings))


def test_small_heads_are_refused_before_vllm_starts(tiny: Tiny) -> None:
    with pytest.raises(ModelError, match=r"heads have 8 numbers.*at least 32"):
        VllmGenerator(tiny("llama", head_dim=8), GenerateConfig())


def test_a_wrong_dtype_or_engine_name_is_a_config_error(shared_pocket: Policy) -> None:
    with pytest.raises(ConfigError, match="dtype"):
        load_config([], ["dtype=float16", "generate.engine=vllm"])
    with pytest.raises(ConfigError, match='Did you mean "vllm"'):
        make_generator(shared_pocket, GenerateConfig(engine="vlm"))
