"""How large a model is, and how much memory a device has, before anything is loaded.

The memory of training is estimated in `training.memory`.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError

GB = 1e9
CGROUP = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's mallopt."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What the estimate needs to know about a model."""

    parameters: int
    hidden_size: int
    layers: int
    vocabulary: int

    @classmethod
    def of(cls, source: str) -> ModelSize:
        """Builds the model without memory for its weights."""
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        text = config.get_text_config()
        return cls(
            sum(p.numel() for p in model.parameters()),
            text.hidden_size, text.num_hidden_layers, text.vocab_size,
        )  # fmt: skip


def available_memory(device: torch.device) -> int | None:
    """Free bytes of the device; None if unknown. On the CPU, the limit of a container counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("MemAvailable")]
        limits.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):  # "max" is not a number
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        reclaimable = _read_statistic("inactive_file")
        limits.append(limit - used + reclaimable)
    return min(limits) if limits else None


def _read_statistic(name: str) -> int:
    for line in (CGROUP / "memory.stat").read_text().splitlines():
        key, value = line.split()
        if key == name:
            return int(value)
    return 0


def keep_freed_memory() -> None:
    """Lets glibc reuse the memory of freed tensors in this process instead of returning it to the system.

    By default every tensor of more than 32 MB gets new pages, which the system clears one by one: an
    elementwise operation then takes four times as long. Without glibc nothing is changed."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never


def check_generator_memory(size: ModelSize, config: Config, device: torch.device) -> None:
    """Raises if a process that only generates clearly cannot hold the model: weights and their fused or
    rounded copy. The KV cache, which grows with use, is not counted."""
    available = available_memory(device)
    copies = (2 if config.dtype == "bfloat16" else 4) * size.parameters
    required = 4 * size.parameters + copies
    if available is None or required <= available:
        return
    smaller = "" if config.dtype == "bfloat16" else "dtype=bfloat16, "
    raise ConfigError(
        f'The model "{config.model}" ({size.parameters / 1e6:,.0f} million parameters) needs about '
        f"{required / GB:.1f} GB on {device} to generate, but only {available / GB:.1f} GB are free. Set "
        f"{smaller}generate.device to a larger device, or choose a smaller model."
    )
