"""Plan a run: memory, time, cost and layout, without loading the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.config import Config, import_modules

if TYPE_CHECKING:
    from glasshouse.plan.memory import ProcessMemory
    from glasshouse.plan.planner import Plan

__all__ = ["plan_memory", "plan_run"]


def plan_run(
    config: Config,
    *,
    gpu: str = "",
    run: Path | None = None,
    price: float | None = None,
    prompt_tokens: int | None = None,
    completion_tokens: int | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Plan:
    """Estimate the peak memory of each part, seconds per step and cost of a run, and suggest a layout.

    `gpu` is the device, as in "1x24GB" or "8xH100"; empty: this machine's processor. `run` is a run directory
    of the same model whose times are used instead of listed throughput; `warn` receives what is damaged of it.
    `price` is per device and hour.

    Example: `plan_run(load_config(["config.yaml"]), gpu="1x80GB", price=1.5).cost`
    """
    from glasshouse.plan import planner
    from glasshouse.store.verify import name_curve_damage

    result = planner.plan_run(
        _fill_options(config), gpu=gpu, run=run, price=price, prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
    )  # fmt: skip
    if run:
        name_curve_damage(run, warn)
    return result


def plan_memory(config: Config) -> list[ProcessMemory]:
    """Estimate the peak memory of each process of a run, by phase and part.

    Example: `plan_memory(load_config(overrides={"model": "pocket"}))[0].peak`
    """
    from glasshouse.plan.memory import TracedModel, estimate_memory
    from glasshouse.plan.prompts import read_model_config, sample_prompts

    config = _fill_options(config)
    model = TracedModel.of(read_model_config(config.model))
    return estimate_memory(model, config, sample_prompts(config))


def _fill_options(config: Config) -> Config:
    """With the task options that the model was trained on."""
    from glasshouse.evaluation.setup import fill_task_options
    from glasshouse.models import Policy
    from glasshouse.models.policy import read_card
    from glasshouse.plan.prompts import is_bare_config

    import_modules(config.imports)
    card = {} if is_bare_config(config.model) else read_card(config.model)
    return fill_task_options(config, Policy(config.model, None, None, card))
