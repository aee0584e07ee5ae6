"""`glasshouse plan`: the memory of a run on given devices, and a layout that fits.

The first of these that fits is suggested: all weights; all weights with activation checkpointing; the same with the
learner sharded over as few of several GPUs as possible; then these three with adapters. Each is tried with the
microbatch and the KV cache of the configuration, and with smaller ones. What the configuration sets already
(adapters, checkpointing, sharding, the engine) is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from glasshouse.config.loading import merge_layers, override_config
from glasshouse.config.schema import Config
from glasshouse.config.yaml_files import dump_yaml
from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.models.devices import available_memory
from glasshouse.training.memory import ProcessMemory, estimate_memory
from glasshouse.training.traced_model import Prompts, TracedModel, sample_prompts

GPUS = {
    "L4": 24, "A10": 24, "RTX3090": 24, "RTX4090": 24, "RTX5090": 32, "A100-40GB": 40, "A40": 48, "RTXA6000": 48,
    "L40S": 48, "A100": 80, "H100-PCIe": 80, "H100": 80, "H200": 141, "B200": 180,
}  # fmt: skip
"""Memory in GB."""
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
        """Reads `1x24GB`, `8x80GB`, `8xH100` or `RTX4090`; empty: the processor of this machine."""
        if not text:
            memory = available_memory(torch.device("cpu")) or 0
            return cls(name="this machine's CPU", count=1, memory=memory, is_gpu=False)
        match = re.fullmatch(r"\s*(?:(\d{1,4})\s*[x×*]\s*)?([A-Za-z0-9 .-]{1,40})\s*", text)
        count, name = (int(match[1] or 1), match[2].strip()) if match else (0, "")
        size = re.fullmatch(r"(\d{1,4})\s*GB", name, re.IGNORECASE)
        names = {_normalize(listed): listed for listed in GPUS}
        label = f"{size[1]} GB" if size else names.get(_normalize(name), "")
        gigabytes = int(size[1]) if size else GPUS.get(label, 0)
        if not count or not gigabytes:
            raise ConfigError(
                f'--gpu: "{text}" is unknown. Write a number of GPUs and their memory or name, as in 1x24GB or '
                f"8xH100.{did_you_mean(text.rpartition('x')[2].strip(), GPUS)}"
            )
        return cls(name=label, count=count, memory=gigabytes * 10**9)

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

    def to_json(self) -> dict[str, Any]:
        """For `--json`: sizes in bytes."""
        values = asdict(self)
        values["device"]["usable_bytes"] = self.device.usable_bytes
        values["processes"] = [process.to_json() for process in self.processes]
        values["layout"]["processes"] = [process.to_json() for process in self.layout.processes]
        return values


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
    model = TracedModel.read(config.model)
    prompts = sample_prompts(config, prompt_tokens)
    processes = estimate_memory(model, config, prompts)
    return Plan(
        model=config.model, parameters=model.parameters, device=device,
        prompt_tokens=max(map(len, prompts)), fits=device.can_hold(processes), processes=processes,
        layout=LayoutSearch(model, config, device, prompts).run(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    """Every configuration that is tried is valid."""

    model: TracedModel
    config: Config
    device: Devices
    prompts: Prompts

    def run(self) -> Layout:
        """The first layout that fits; if none does, the last."""
        for changes in self._candidates():
            layout = self._fit(changes)
            if layout.fits:
                break
        return layout

    def _candidates(self) -> Iterator[dict[str, Any]]:
        learn = self.config.learn
        base = {"device": "cuda", "dtype": "bfloat16"} if self.device.is_gpu else {}
        for rank in [learn.lora_rank] if learn.lora_rank else [0, LORA_RANK]:
            common = base | {"learn.lora_rank": rank}
            sharded = list(self._sharded_learners(rank))
            if learn.sharding == "none" or not sharded:
                divided = self._divide(learners=1) if self.device.count > 1 else {}
                for checkpointing in [True] if learn.activation_checkpointing else [False, True]:
                    yield common | divided | {"learn.activation_checkpointing": checkpointing}
            for divided in sharded:
                yield common | divided | {"learn.activation_checkpointing": True}

    def _divide(self, learners: int) -> dict[str, Any]:
        """Learners have the first GPUs, each generator one of the others; if none is left, they share all GPUs."""
        generators = self.device.count - learners or self.device.count
        return {
            "backend": "monarch", "generate.device": "cuda",
            "generate.chunk_size": math.ceil(self.config.data.groups_per_step / generators),
            "monarch.generators": generators, "monarch.learners": learners,
        }  # fmt: skip

    def _sharded_learners(self, rank: int) -> Iterator[dict[str, Any]]:
        """The learner divided among 2, 4, … and all but one GPU, and among all; without the numbers of ranks whose
        part of weights, gradients and optimizer state is too large."""
        gpus = self.device.count
        if gpus == 1:
            return
        powers = (2**n for n in range(1, gpus.bit_length()))
        for learners in sorted({*powers, max(2, gpus - 1), gpus}):
            state = (4 if rank else 16) * self.model.parameters // learners
            if state <= self.device.usable_bytes:
                yield self._divide(learners) | {"learn.sharding": "fsdp"}

    def _fit(self, changes: dict[str, Any]) -> Layout:
        """With the microbatch and the KV cache of the configuration, or halved until they fit."""
        *larger, smallest = self._sizes()
        layout = self._try(changes | smallest)
        if not layout.fits:
            return layout
        tried = (self._try(changes | sizes) for sizes in larger)
        return next((layout for layout in tried if layout.fits), layout)

    def _sizes(self) -> Iterator[dict[str, int]]:
        """The largest first. A microbatch has at least one row."""
        row = max(map(len, self.prompts)) + self.config.generate.max_tokens
        microbatch, cache = self.config.learn.microbatch_tokens, self.config.generate.kv_cache_mb
        while True:
            yield {"learn.microbatch_tokens": microbatch, "generate.kv_cache_mb": cache}
            if microbatch <= row and cache <= MIN_CACHE_MB:
                return
            microbatch = min(microbatch, max(row, microbatch // 2))
            cache = min(cache, max(MIN_CACHE_MB, cache // 2))

    def _try(self, changes: dict[str, Any]) -> Layout:
        config = override_config(self.config, changes)
        processes = estimate_memory(self.model, config, self.prompts)
        fits = self.device.can_hold(processes)
        return Layout(fits=fits, changes=changes, processes=processes)


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
