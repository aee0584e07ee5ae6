"""How much memory a model needs, compared with what its device has, before anything is loaded."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from glasshouse.config import Config
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


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes by purpose."""

    weights: int
    optimizer: int
    """Gradients, their sums over microbatches, and AdamW's two averages."""
    reference: int
    """The starting policy, for the KL divergence."""
    converted: int
    """Fused or rounded copies of the weights."""
    activations: int
    cache: int

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in self.__slots__)


def estimate_memory(size: ModelSize, config: Config, *, training: bool) -> MemoryNeeds:
    """Memory that generation, and with `training` also learning, needs at its peak, on one device."""
    n, itemsize = size.parameters, 2 if config.dtype == "bfloat16" else 4
    if not training:
        return MemoryNeeds(4 * n, 0, 0, itemsize * n, 0, config.generate.kv_cache_mb << 20)
    learn = config.learn
    # Per token and layer, in hidden sizes: input, norms, q, k, v and attention 8, the MLP's tensors 12.
    per_token = (4 if learn.activation_checkpointing else 20) * size.hidden_size * itemsize
    # Logits, probabilities and their gradient.
    per_token = per_token * size.layers + 3 * 4 * size.vocabulary
    trained = n // 50 if learn.lora_rank else n
    return MemoryNeeds(
        weights=4 * n,
        optimizer=4 * 4 * trained,
        reference=itemsize * n,
        converted=itemsize * n,
        activations=learn.microbatch_tokens * per_token,
        cache=config.generate.kv_cache_mb << 20,
    )


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


def check_memory(size: ModelSize, config: Config, device: torch.device, *, training: bool) -> None:
    """Raises if the model clearly does not fit: the cache, which grows with use, is not counted."""
    available = available_memory(device)
    needs = estimate_memory(size, config, training=training)
    required = needs.total - needs.cache
    if available is None or required <= available:
        return
    parts = ", ".join(
        f"{name} {getattr(needs, name) / GB:.1f}"
        for name in ("weights", "optimizer", "reference", "converted", "activations")
        if getattr(needs, name)
    )
    raise ConfigError(
        f'The model "{config.model}" ({size.parameters / 1e6:,.0f} million parameters) needs about '
        f"{required / GB:.1f} GB on {device} ({parts}), but only {available / GB:.1f} GB are free. "
        + _suggest(config, needs, training)
    )


def _suggest(config: Config, needs: MemoryNeeds, training: bool) -> str:
    options = []
    if training and not config.learn.lora_rank:
        options.append("learn.lora_rank=16 (trains adapters only)")
    if training and needs.activations > needs.total // 4:
        if not config.learn.activation_checkpointing:
            options.append("learn.activation_checkpointing=true")
        options.append(
            f"a smaller learn.microbatch_tokens (now {config.learn.microbatch_tokens:,})"
        )
    if config.dtype == "float32":
        options.append("dtype=bfloat16")
    return f"Set {', '.join([*options, 'or choose a smaller model or a larger device'])}."


def describe(needs: Any) -> dict[str, float]:
    """The estimate in GB, for reports."""
    return {name: round(getattr(needs, name) / GB, 3) for name in (*needs.__slots__, "total")}
