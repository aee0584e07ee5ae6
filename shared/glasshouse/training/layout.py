"""A layout that fits: what to train, microbatch, KV cache, and how GPUs are divided.

The first of these that fits is suggested, with the largest microbatch that fits: all weights; all weights with
activation checkpointing; the same with the learner sharded over as few of several GPUs as possible; then these
three with adapters. What the configuration sets already (adapters, checkpointing, sharding, the engine) is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.config.yaml_files import dump_yaml
from glasshouse.training.accelerators import Accelerator
from glasshouse.training.memory import (
    GENERATE,
    LEARN,
    ProcessMemory,
    Prompts,
    TracedModel,
    estimate_memory,
)

MAX_MICROBATCH = 32_768
"""Larger microbatches are not faster."""
LORA_RANK = 16
MIN_CACHE_MB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A configuration that fits, or the smallest that was tried."""

    fits: bool
    changes: dict[str, Any]
    """Config keys, dotted, and their values."""
    config: Config
    processes: list[ProcessMemory]

    def lines(self) -> str:
        """The config lines to paste."""
        nested: dict[str, Any] = {}
        for key, value in self.changes.items():
            *sections, last = key.split(".")
            place = nested
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        return dump_yaml(nested)


def suggest_layout(
    model: TracedModel, config: Config, device: Accelerator, prompts: Prompts
) -> Layout:
    """Searches; every configuration that is tried is valid."""
    layout = None
    for changes in _candidates(model, config, device):
        layout = _fit(model, config, device, prompts, changes)
        if layout.fits:
            break
    assert layout is not None
    return layout


def _candidates(
    model: TracedModel, config: Config, device: Accelerator
) -> Iterator[dict[str, Any]]:
    base = {"device": "cuda", "dtype": "bfloat16"} if device.is_gpu else {}
    recompute = [True] if config.learn.activation_checkpointing else [False, True]
    for rank in [config.learn.lora_rank] if config.learn.lora_rank else [0, LORA_RANK]:
        common = base | {"learn.lora_rank": rank}
        sharded = [
            common | changes | {"learn.activation_checkpointing": True}
            for changes in _sharded_learners(model, config, device, rank)
        ]
        if config.learn.sharding == "none" or not sharded:
            for checkpointing in recompute:
                yield (
                    common
                    | (_divide(config, device, learners=1) if device.count > 1 else {})
                    | {"learn.activation_checkpointing": checkpointing}
                )
        yield from sharded


def _divide(config: Config, device: Accelerator, learners: int) -> dict[str, Any]:
    """Learners have the first GPUs, each generator one of the others; if none is left, they share all GPUs."""
    generators = device.count - learners or device.count
    return {
        "backend": "monarch", "generate.device": "cuda",
        "generate.chunk_size": math.ceil(config.data.groups_per_step / generators),
        "monarch.generators": generators, "monarch.learners": learners,
    }  # fmt: skip


def _sharded_learners(
    model: TracedModel, config: Config, device: Accelerator, rank: int
) -> Iterator[dict[str, Any]]:
    """The learner divided among 2, 4, … and all but one GPU, and among all; without the numbers of ranks whose
    part of weights, gradients and optimizer state is too large."""
    if device.count == 1:
        return
    powers = itertools.takewhile(lambda n: n < device.count, (2**n for n in itertools.count(1)))
    for learners in sorted({*powers, max(2, device.count - 1), device.count}):
        state = (4 if rank else 16) * model.parameters // learners
        if state <= device.usable_bytes:
            yield _divide(config, device, learners) | {"learn.sharding": "fsdp"}


def _fit(
    model: TracedModel,
    config: Config,
    device: Accelerator,
    prompts: Prompts,
    changes: dict[str, Any],
) -> Layout:
    """The largest microbatch for these settings, a power of two, and a KV cache for what is left."""
    row = max(map(len, prompts)) + config.generate.max_tokens
    smallest = 2 ** math.ceil(math.log2(row))
    rows = config.data.groups_per_step * config.generate.group_size
    cache = _wanted_cache(model, config, row)

    def try_sizes(microbatch: int, cache_mb: int) -> Layout:
        keys = changes | {"learn.microbatch_tokens": microbatch, "generate.kv_cache_mb": cache_mb}
        tried = with_changes(config, keys)
        processes = estimate_memory(model, tried, prompts)
        fits = device.can_hold([peak for process in processes for peak in process.peaks])
        return Layout(fits=fits, changes=keys, config=tried, processes=processes)

    layout = try_sizes(smallest, MIN_CACHE_MB)
    if not layout.fits:
        return layout
    larger = try_sizes(2 * smallest, MIN_CACHE_MB)
    learning, doubled = (item.processes[0].phases[LEARN] for item in (layout, larger))
    per_token = max(1, (sum(doubled.values()) - sum(learning.values())) // smallest)
    spare = device.usable_bytes - sum(learning.values())
    most = min(MAX_MICROBATCH, smallest + spare // per_token, max(smallest, rows * row))
    microbatch = max(smallest, 2 ** int(math.log2(most)))
    generating = layout.processes[-1].phases[GENERATE]
    free = device.usable_bytes - (sum(generating.values()) - generating["kv_cache"])
    # half, because rows also need logits and attention scores
    cache_mb = int(max(MIN_CACHE_MB, min(cache, free // 2 >> 20)))
    while microbatch > smallest or cache_mb > MIN_CACHE_MB:
        layout = try_sizes(microbatch, cache_mb)
        if layout.fits:
            return layout
        microbatch, cache_mb = max(smallest, microbatch // 2), max(MIN_CACHE_MB, cache_mb // 2)
    return try_sizes(smallest, MIN_CACHE_MB)


def _wanted_cache(model: TracedModel, config: Config, row: int) -> int:
    """Megabytes of KV cache for all rows of a chunk."""
    itemsize = 2 if config.dtype == "bfloat16" else 4
    rows = min(config.generate.chunk_size, config.data.groups_per_step) * config.generate.group_size
    return math.ceil(rows * row * kv_bytes_per_token(model, itemsize) / 2**20) + 1


def kv_bytes_per_token(model: TracedModel, itemsize: int) -> int:
    """Bytes of a token's keys and values."""
    text = model.text_config
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * itemsize * heads * width * model.layers)


def with_changes(config: Config, changes: dict[str, Any]) -> Config:
    """The configuration with these dotted keys; validated."""
    values = config.model_dump()
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place[section]
        place[last] = value
    return Config.model_validate(values)
