"""`glasshouse plan`: memory, time, cost and layout of a run, without loading the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from glasshouse.config import Config
from glasshouse.errors import ConfigError
from glasshouse.models.memory import available_memory
from glasshouse.plan.accelerators import Accelerator, measure_processor, parse_accelerator
from glasshouse.plan.layout import Layout, suggest_layout
from glasshouse.plan.memory import ProcessMemory, TracedModel, estimate_memory
from glasshouse.plan.prompts import (
    is_bare_config,
    make_prompts,
    read_model_config,
    sample_prompts,
)
from glasshouse.plan.step_time import StepTime, estimate_step_time, read_step_time

DEFAULT_PROMPT_TOKENS = 256
"""Length of a prompt if the model's tokenizer is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs, and a layout that fits."""

    model: str
    parameters: int
    device: Accelerator
    prompt_tokens: int
    completion_tokens: float
    processes: list[ProcessMemory]
    """Of the configuration as it is."""
    step: StepTime
    """Of the suggested layout if there is one, else of the configuration as it is."""
    steps: int
    price: float | None
    """Per device and hour."""
    layout: Layout

    @property
    def fits(self) -> bool:
        """Does the configuration fit as it is?"""
        peaks = [peak for process in self.processes for peak in process.peaks]
        return self.device.can_hold(peaks)

    @property
    def hours(self) -> float:
        return self.steps * self.step.seconds / 3600

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.hours * self.device.count * self.price

    def to_json(self) -> dict[str, Any]:
        """For `--json`: bytes, seconds, hours."""
        return {
            "model": self.model, "parameters": self.parameters,
            "device": asdict(self.device) | {"usable_bytes": self.device.usable_bytes},
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens,
            "fits": self.fits,
            "processes": [_process_json(process) for process in self.processes],
            "step": asdict(self.step) | {"seconds": self.step.seconds, "limit": self.step.limit},
            "steps": self.steps, "hours": self.hours, "price": self.price, "cost": self.cost,
            "layout": {
                "fits": self.layout.fits, "changes": self.layout.changes,
                "processes": [_process_json(process) for process in self.layout.processes],
            },
        }  # fmt: skip


def plan_run(
    config: Config,
    *,
    gpu: str = "",
    run: Path | None = None,
    price: float | None = None,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
) -> Plan:
    """Plans a run on `gpu`, as in "1x24GB", or on this machine's processor. `task.options` must be filled in.

    Example: `plan_run(load_config(["config.yaml"]), gpu="1x80GB", price=1.5).cost`
    """
    _check_arguments(price, prompt_tokens, completion_tokens)
    device = parse_accelerator(gpu) if gpu else None
    model = TracedModel.of(read_model_config(config.model))
    if prompt_tokens is None and not is_bare_config(config.model):
        prompts = sample_prompts(config)
    else:
        prompts = make_prompts(prompt_tokens or DEFAULT_PROMPT_TOKENS)
    if device is None:
        memory = available_memory(torch.device("cpu")) or 0
        device = measure_processor(memory, config.threads)
    elif not config.device.startswith("cuda"):
        config = config.model_copy(update={"device": "cuda"})
    longest = max(map(len, prompts))
    measured = read_step_time(run, config) if run else None
    tokens = completion_tokens or (measured[1] if measured else config.generate.max_tokens)
    processes = estimate_memory(model, config, prompts, completion_tokens=completion_tokens)
    layout = suggest_layout(model, config, device, prompts)
    planned = layout.config if layout.fits else config
    step = measured[0] if measured else estimate_step_time(model, planned, device, longest, tokens)
    return Plan(
        model=config.model, parameters=model.parameters, device=device, prompt_tokens=longest,
        completion_tokens=tokens, processes=processes, step=step, steps=config.steps, price=price,
        layout=layout,
    )  # fmt: skip


def _check_arguments(
    price: float | None, prompt_tokens: int | None, completion_tokens: int | None
) -> None:
    if price is not None and not 0 <= price < 1e6:
        raise ConfigError(f"--price is {price}; it must be a price per device and hour, 0 or more.")
    for option, value in (
        ("--prompt-tokens", prompt_tokens), ("--completion-tokens", completion_tokens)
    ):  # fmt: skip
        if value is not None and not 1 <= value <= 1_000_000:
            raise ConfigError(f"{option} is {value}; it must be between 1 and 1,000,000.")


def _process_json(process: ProcessMemory) -> dict[str, Any]:
    return asdict(process) | {
        "peak": process.peak, "peak_phase": process.peak_phase, "largest_part": process.largest_part,
    }  # fmt: skip
