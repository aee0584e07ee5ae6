"""Plan a run: memory and layout, without loading the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glasshouse.config.imports import import_modules
from glasshouse.config.schema import Config

if TYPE_CHECKING:
    from glasshouse.training.memory import ProcessMemory
    from glasshouse.training.planner import Plan

__all__ = ["plan_memory", "plan_run"]


def plan_run(config: Config, *, gpu: str = "", prompt_tokens: int | None = None) -> Plan:
    """Estimate the peak memory of each part of a run, and suggest a layout that fits.

    `gpu` is the device, as in "1x24GB" or "8xH100"; empty: this machine's processor. `prompt_tokens` is the length
    of a prompt; None: that of the task's prompts.

    Example: `plan_run(load_config(["config.yaml"]), gpu="1x80GB").fits`
    """
    from glasshouse.training import planner

    return planner.plan_run(_fill_options(config), gpu=gpu, prompt_tokens=prompt_tokens)


def plan_memory(config: Config) -> list[ProcessMemory]:
    """Estimate the peak memory of each process of a run, by phase and part.

    Example: `plan_memory(load_config(overrides={"model": "pocket"}))[0].peak`
    """
    from glasshouse.training.memory import TracedModel, estimate_memory
    from glasshouse.training.prompt_lengths import read_model_config, sample_prompts

    config = _fill_options(config)
    model = TracedModel.of(read_model_config(config.model))
    return estimate_memory(model, config, sample_prompts(config))


def _fill_options(config: Config) -> Config:
    """With the task options that the model was trained on."""
    from glasshouse.measurement.evaluation_setup import fill_task_options
    from glasshouse.models.policy import Policy, read_card
    from glasshouse.training.prompt_lengths import is_bare_config

    import_modules(config.imports)
    card = {} if is_bare_config(config.model) else read_card(config.model)
    return fill_task_options(config, Policy(config.model, None, None, card))
