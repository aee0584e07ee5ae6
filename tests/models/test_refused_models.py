"""A model that cannot run here is refused before it is loaded: one message, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glasshouse.cli.app import main
from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.models import devices
from glasshouse.models import policy as policies
from glasshouse.models.devices import available_memory, check_generator_memory
from glasshouse.models.policy import loading_error
from glasshouse.training import memory

EIGHT_BILLION = 8_000_000_000
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("device=cuda", "device is cuda"),
        ("generate.device=cuda:7", "generate.device is cuda:7"),
        ("device=nosuch", "nosuch"),
        ("device=GPU 1", "device"),
        ("dtype=float16", "dtype"),
        ("chat.template_options={enable_thinking: false}", "enable_thinking"),
        ("learn.lora_targets=[q_prj]", '"q_proj"'),
        ("memory", "Set learn.lora_rank=16"),
        ("memory learn.lora_rank=2", "Set learn.activation_checkpointing=true"),
    ],
)
def test_run_that_cannot_start_is_refused_with_the_key(
    override: str,
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    overrides = [override, "learn.lora_rank=2"] if "lora" in override else [override]
    if override.startswith("memory"):
        monkeypatch.setattr(memory, "available_memory", lambda device: 1_000_000)
        monkeypatch.setattr(policies, "load_policy", None)  # it is not loaded
        overrides = override.split()[1:]
    out = tmp_path / "run"
    assert main(["train", "model=models/mock", "steps=1", *overrides, f"out={out}"]) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message
    assert not out.exists()


def test_generator_that_does_not_fit_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config([], ["model=org/big"])
    monkeypatch.setattr(devices, "available_memory", lambda device: 24_000_000_000)
    with pytest.raises(
        ConfigError, match=r"org/big.*8,000 million.*64\.0 GB on cpu.*24\.0 GB.*dtype=bfloat16"
    ):
        check_generator_memory(EIGHT_BILLION, config, torch.float32, CPU)
    monkeypatch.setattr(devices, "available_memory", lambda device: 64_000_000_000)
    check_generator_memory(EIGHT_BILLION, config, torch.float32, CPU)


def test_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("max", "3000"),
        ("current", "2500"),
        ("stat", "anon 1\ninactive_file 200\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    assert available_memory(CPU) == 700
    (tmp_path / "memory.max").write_text("max")
    available = available_memory(CPU)
    assert available is None or available > 1_000_000


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("You are trying to access a gated repo. 401 Client Error", "hf auth login"),
        ("org/name is not a local folder and is not a valid model identifier", "no model"),
        ("Connection refused", "hf download org/name"),
    ],
)
def test_hub_errors_say_what_to_do(error: str, named: str) -> None:
    message = str(loading_error("org/name", None, OSError(error)))
    assert '"org/name"' in message
    assert named in message
