"""`glasshouse plan`: the memory of a run on given devices, and a layout that fits.

The first of these that fits is suggested: all weights; all weights with activation checkpointing; the same with
the learner sharded over as few of several GPUs as possible; then these three with adapters. Each is tried with
the microbatch and the KV cache of the configuration, and with smaller ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glasshouse.config.loading import dump_yaml, merge_layers, override_config
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.models.devices import available_memory
from glasshouse.models.policy import load_empty_model
from glasshouse.training.memory import (
    ModelShape,
    ProcessMemory,
    PromptLength,
    estimate_memory,
    measure_prompts,
)

CONTEXT_BYTES = 1_000_000_000
"""Memory of a CUDA context and of the libraries' work space: a listed value."""
USABLE = 0.92
"""Share of a GPU's memory that is planned for; the rest is lost to fragmentation."""
LORA_RANK = 16
MIN_CACHE_MB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """A number of equal devices.

    Example: `Devices.parse("8x80GB").usable_bytes`
    """

    name: str
    count: int
    memory: int
    """Bytes of one device."""
    is_gpu: bool = True

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Reads `8x80GB`; empty: the processor of this machine."""
        if not text:
            memory = available_memory(torch.device("cpu")) or 0
            return cls(name="this machine's CPU", count=1, memory=memory, is_gpu=False)
        pattern = r"([1-9]\d{0,3})\s*[x×*]\s*([1-9]\d{0,3})\s*GB"
        match = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
        if not match:
            raise ConfigError(
                f'--gpu: "{text}" is unknown. Write a number of GPUs and the memory of one, as in 8x80GB.'
            )
        count, gigabytes = map(int, match.groups())
        return cls(name=f"{gigabytes} GB", count=count, memory=gigabytes * 10**9)

    @property
    def usable_bytes(self) -> int:
        """Of one device."""
        return int(USABLE * self.memory) - CONTEXT_BYTES if self.is_gpu else self.memory

    def can_hold(self, processes: Sequence[ProcessMemory]) -> bool:
        """Do these processes fit? If there are more of them than devices, they share the devices."""
        peaks = [process.peak for process in processes for _ in range(process.count)]
        shared = sum(peaks) / self.count if len(peaks) > self.count else 0
        return max(*peaks, shared) <= self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A configuration that fits, or the smallest that was tried."""

    fits: bool
    changes: dict[str, Any]
    """Config keys, dotted, and their values."""
    processes: list[ProcessMemory]

    def lines(self) -> str:
        """The config lines to paste."""
        return dump_yaml(merge_layers([self.changes]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs, and a layout that fits."""

    model: str
    parameters: int
    device: Devices
    prompt_tokens: int
    fits: bool
    """Does the configuration fit as it is?"""
    processes: list[ProcessMemory]
    """Of the configuration as it is."""
    layout: Layout


def plan_run(config: Config, *, gpu: str = "", prompt_tokens: int | None = None) -> Plan:
    """Plans a run on `gpu`, as in "1x24GB", or on this machine's processor. `prompt_tokens` is the length of
    a prompt; None: that of the task's prompts.

    Example: `plan_run(load_config(["config.yaml"]), gpu="1x80GB").fits`
    """
    if prompt_tokens is not None and not 1 <= prompt_tokens <= 1_000_000:
        raise ConfigError(
            f"--prompt-tokens is {prompt_tokens}; it must be between 1 and 1,000,000."
        )
    device = Devices.parse(gpu)
    if device.is_gpu and not config.device.startswith("cuda"):
        config = config.model_copy(update={"device": "cuda"})
    shape = ModelShape(load_empty_model(config.model))
    prompt = measure_prompts(config, prompt_tokens)
    processes = estimate_memory(shape, config, prompt)
    return Plan(
        model=config.model,
        parameters=shape.parameters,
        device=device,
        prompt_tokens=prompt.tokens,
        fits=device.can_hold(processes),
        processes=processes,
        layout=find_layout(shape, config, device, prompt),
    )


def find_layout(shape: ModelShape, config: Config, device: Devices, prompt: PromptLength) -> Layout:
    """The first layout that fits; if none does, the last that was tried."""
    *larger, smallest = _sizes(config, prompt)

    def attempt(changes: dict[str, Any]) -> Layout:
        processes = estimate_memory(shape, override_config(config, changes), prompt)
        fits = device.can_hold(processes)
        return Layout(fits=fits, changes=changes, processes=processes)

    for changes in _candidates(shape, config, device):
        layout = attempt(changes | smallest)
        if layout.fits:
            tried = (attempt(changes | sizes) for sizes in larger)
            return next((larger for larger in tried if larger.fits), layout)
    return layout


def _candidates(shape: ModelShape, config: Config, device: Devices) -> Iterator[dict[str, Any]]:
    """Layouts in the order in which they are preferred."""
    learn, gpus = config.learn, device.count
    base = {"device": "cuda", "dtype": "bfloat16"} if device.is_gpu else {}
    for rank in [learn.lora_rank] if learn.lora_rank else [0, LORA_RANK]:
        common = base | {"learn.lora_rank": rank}
        if learn.sharding == "none" or gpus == 1:
            divided = _divide(config, gpus, learners=1) if gpus > 1 else {}
            for checkpointing in [True] if learn.activation_checkpointing else [False, True]:
                yield common | divided | {"learn.activation_checkpointing": checkpointing}
        # the learner among 2, 4, … and all but one GPU, and among all
        numbers = {*(2**n for n in range(1, gpus.bit_length())), max(2, gpus - 1), gpus}
        for learners in sorted(numbers) if gpus > 1 else []:
            sharded = {"learn.sharding": "fsdp", "learn.activation_checkpointing": True}
            yield common | _divide(config, gpus, learners) | sharded


def _divide(config: Config, gpus: int, learners: int) -> dict[str, Any]:
    """Learners have the first GPUs, each generator one of the others; if none is left, they share all GPUs."""
    generators = gpus - learners or gpus
    return {
        "backend": "monarch",
        "generate.device": "cuda",
        "generate.chunk_size": math.ceil(config.data.groups_per_step / generators),
        "monarch.generators": generators,
        "monarch.learners": learners,
    }


def _sizes(config: Config, prompt: PromptLength) -> Iterator[dict[str, int]]:
    """Microbatch and KV cache of the configuration, then halved. A microbatch has at least one row."""
    row = prompt.tokens + config.generate.max_tokens
    microbatch, cache = config.learn.microbatch_tokens, config.generate.kv_cache_mb
    while True:
        yield {"learn.microbatch_tokens": microbatch, "generate.kv_cache_mb": cache}
        if microbatch <= row and cache <= MIN_CACHE_MB:
            return
        microbatch = min(microbatch, max(row, microbatch // 2))
        cache = min(cache, max(MIN_CACHE_MB, cache // 2))
