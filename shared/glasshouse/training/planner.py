"""`glasshouse plan`: memory and layout of a run, without loading the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.models.memory import available_memory
from glasshouse.training.accelerators import Accelerator, parse_accelerator
from glasshouse.training.layout import Layout, suggest_layout
from glasshouse.training.memory import ProcessMemory, TracedModel, estimate_memory
from glasshouse.training.prompt_lengths import (
    is_bare_config,
    make_prompts,
    read_model_config,
    sample_prompts,
)

DEFAULT_PROMPT_TOKENS = 256
"""Length of a prompt if the model's tokenizer is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs, and a layout that fits."""

    model: str
    parameters: int
    device: Accelerator
    prompt_tokens: int
    processes: list[ProcessMemory]
    """Of the configuration as it is."""
    layout: Layout

    @property
    def fits(self) -> bool:
        """Does the configuration fit as it is?"""
        peaks = [peak for process in self.processes for peak in process.peaks]
        return self.device.can_hold(peaks)

    def to_json(self) -> dict[str, Any]:
        """For `--json`: sizes in bytes."""
        return {
            "model": self.model, "parameters": self.parameters,
            "device": asdict(self.device) | {"usable_bytes": self.device.usable_bytes},
            "prompt_tokens": self.prompt_tokens, "fits": self.fits,
            "processes": [_process_json(process) for process in self.processes],
            "layout": {
                "fits": self.layout.fits, "changes": self.layout.changes,
                "processes": [_process_json(process) for process in self.layout.processes],
            },
        }  # fmt: skip


def plan_run(config: Config, *, gpu: str = "", prompt_tokens: int | None = None) -> Plan:
    """Plans a run on `gpu`, as in "1x24GB", or on this machine's processor. `task.options` must be filled in.

    Example: `plan_run(load_config(["config.yaml"]), gpu="1x80GB").fits`
    """
    if prompt_tokens is not None and not 1 <= prompt_tokens <= 1_000_000:
        raise ConfigError(
            f"--prompt-tokens is {prompt_tokens}; it must be between 1 and 1,000,000."
        )
    device = parse_accelerator(gpu) if gpu else None
    model = TracedModel.of(read_model_config(config.model))
    if prompt_tokens is None and not is_bare_config(config.model):
        prompts = sample_prompts(config)
    else:
        prompts = make_prompts(prompt_tokens or DEFAULT_PROMPT_TOKENS)
    if device is None:
        memory = available_memory(torch.device("cpu")) or 0
        device = Accelerator(name="this machine's CPU", count=1, memory=memory, is_gpu=False)
    elif not config.device.startswith("cuda"):
        config = config.model_copy(update={"device": "cuda"})
    return Plan(
        model=config.model, parameters=model.parameters, device=device,
        prompt_tokens=max(map(len, prompts)), processes=estimate_memory(model, config, prompts),
        layout=suggest_layout(model, config, device, prompts),
    )  # fmt: skip


def _process_json(process: ProcessMemory) -> dict[str, Any]:
    return asdict(process) | {
        "peak": process.peak, "peak_phase": process.peak_phase, "largest_part": process.largest_part,
    }  # fmt: skip
