"""Every part of the package runs on a device that is not the CPU, and in bfloat16.

There is no GPU in CI: `stand_in_device` takes its place and raises where a tensor is on the wrong device.
`make proofs ONLY=gpu` makes the same checks on a real one.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch
from proofs import device_checks
from proofs.device_checks import LIMITS, compare_with_cpu
from tests.stand_in_device import SYNCHRONISATIONS, stand_in_device

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.generate import torch_engine
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.models import devices
from glasshouse.models import policy as policies
from glasshouse.models.devices import resolve_device, resolve_dtype
from glasshouse.types import Request, SamplingParams


def test_stand_in_device_refuses_tensors_of_two_devices() -> None:
    with stand_in_device():
        there, here = torch.ones(2, device="standin"), torch.ones(2)
        assert (there + there).device.type == "standin"
        assert (there + there).cpu().tolist() == [2.0, 2.0]
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            there[torch.tensor([0])]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_device_equals_the_cpu_up_to_rounding(architecture: str) -> None:
    with stand_in_device():
        found = compare_with_cpu(architecture, "standin", "float32")
    assert not found.exceeding(LIMITS["float32"])


def test_bfloat16_kl_entropy_and_activation_checkpointing_run_on_the_device() -> None:
    options = {"kl_coef": 0.1, "entropy_coef": 0.01, "activation_checkpointing": True}
    start = device_checks.make_model("llama")
    samples = device_checks.generate_samples(start)
    expected = device_checks.compute_gradient(start, samples, **options)
    with stand_in_device():
        policy = device_checks.place(device_checks.make_model("llama"), "standin", "bfloat16")
        ours = device_checks.compute_gradient(policy, samples, **options)
    assert (ours - expected).norm() < LIMITS["bfloat16"].gradient * expected.norm()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_bfloat16_equals_float32_within_the_stated_tolerance(architecture: str) -> None:
    found = compare_with_cpu(architecture, "cpu", "bfloat16")
    assert not found.exceeding(LIMITS["bfloat16"])
    assert found.logprob_max > 1e-4  # it was computed in bfloat16


def test_host_does_not_wait_for_the_device_after_every_token() -> None:
    policy = device_checks.make_model("llama")
    policy.model.generation_config.eos_token_id = []
    requests = [Request(prompt=(5, 6, 7), noise_keys=(1, 2))]
    with stand_in_device():
        placed = device_checks.place(policy, "standin", "float32")
        counts = []
        for tokens in (16, 64):
            SYNCHRONISATIONS.clear()
            TorchGenerator(placed).generate(requests, SamplingParams(max_tokens=tokens))
            counts.append(SYNCHRONISATIONS.total())
    assert counts[1] - counts[0] == (64 - 16) // torch_engine.SYNC_EVERY_DEFAULT


def test_stop_string_is_found_although_the_host_looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = device_checks.make_model("llama")
    requests = [Request(prompt=tuple(range(10, 17)), noise_keys=tuple(range(12)))]
    free = TorchGenerator(policy).generate(requests, SamplingParams(max_tokens=20))
    texts = [policy.decode(c.tokens) for c in free[0]]
    stop = next(text[4:6] for text in texts if len(text) > 8)
    sampling = SamplingParams(max_tokens=20, stop=(stop,))
    expected = TorchGenerator(policy).generate(requests, sampling)
    monkeypatch.setitem(torch_engine.SYNC_EVERY, "cpu", 16)
    late = TorchGenerator(policy).generate(requests, sampling)
    for early, other in zip(expected[0], late[0], strict=True):
        assert (early.tokens, early.finish_reason) == (other.tokens, other.finish_reason)
        assert early.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert len({c.finish_reason for c in expected[0]}) > 1


@pytest.mark.parametrize("overrides", [(), ("generate.device=cpu",), ("learn.lora_rank=2",)])
def test_training_evaluation_monitoring_and_checkpoints_run_on_the_device(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    with stand_in_device():
        found = device_checks.run_everything("standin", tmp_path, *overrides)
    assert found["summary"]["steps_done"] == 2
    assert len(found["monitor"]["checkpoints"]) == 2
    assert found["evaluation"]["problems"] == 2
    ours = device_checks.load_policy(str(found["checkpoint"])).weights()
    start = device_checks.load_policy(device_checks.MOCK).weights()
    assert ours.keys() == start.keys()
    assert any(not torch.equal(w, start[name]) for name, w in ours.items())


@pytest.mark.parametrize(("device", "first"), [("cuda", 2), ("auto", 2), ("cuda:7", 0)])
def test_generators_have_the_gpus_after_those_of_the_learners(
    monkeypatch: pytest.MonkeyPatch, device: str, first: int
) -> None:
    overrides = [
        f"device={device}",
        "generate.device=cuda",
        "backend=monarch",
        "monarch.learners=2",
    ]
    config = load_config([], overrides)
    chosen: dict[str, int] = {}

    def record(name: str, parameters: int, index: int = 0, key: str = "device") -> torch.device:
        chosen[key] = index
        return torch.device("cpu")

    monkeypatch.setattr(policies, "resolve_device", record)
    parameters = policies.count_parameters("pocket")
    for role in ("learner", "generator"):
        policies.choose_device(config, parameters, role, index=1)
    assert chosen == {"device": 1, "generate.device": first + 1}


def test_gpu_is_chosen_by_model_size_number_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto", 10**9).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    assert str(resolve_device("auto", 230_000)) == "cpu"  # a pocket model
    assert str(resolve_device("auto", 10**9)) == "cuda:0"
    assert [str(resolve_device("cuda", 1, index=i)) for i in range(3)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    with pytest.raises(ConfigError, match=r"cuda:2.*cuda:0, cuda:1"):
        resolve_device("cuda:2", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert resolve_dtype("float32", torch.device("cuda:0")) == torch.float32
    with pytest.raises(ConfigError, match=r"dtype.*Tesla T4.*dtype=float32"):
        resolve_dtype("bfloat16", torch.device("cuda:0"))


@pytest.mark.parametrize(("flag", "refused"), [("avx512_bf16", False), ("avx2", True)])
def test_bfloat16_of_a_large_model_needs_a_cpu_with_its_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, refused: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : fpu sse2 {flag}\n")
    found = devices.cpu_has_bfloat16(tmp_path / "cpuinfo")
    assert found is not refused
    monkeypatch.setattr(devices, "cpu_has_bfloat16", lambda: found)
    cpu = torch.device("cpu")
    assert resolve_dtype("bfloat16", cpu, parameters=1000) == torch.bfloat16  # small: not refused
    if refused:
        with pytest.raises(ConfigError, match=r"avx512_bf16.*dtype=float32"):
            resolve_dtype("bfloat16", cpu, parameters=10**8)
    else:
        assert resolve_dtype("bfloat16", cpu, parameters=10**8) == torch.bfloat16


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt, and /proc")
def test_freed_memory_is_kept_until_it_is_returned() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    devices.keep_freed_memory()
    size = 400_000_000
    torch.ones(size // 4)
    kept = resident()
    devices.return_freed_memory()
    assert resident() < kept - 0.9 * size
