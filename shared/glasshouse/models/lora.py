"""Low-rank adapters (LoRA) through peft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.extras import install_command
from glasshouse.models.policy import Policy


def add_adapters(policy: Policy, rank: int, seed: int, targets: Sequence[str] = ()) -> Policy:
    """Adds LoRA adapters to every linear layer, or to those named in `targets`; only they are trained.
    Checkpoints are saved with the adapters merged, in the standard layout."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError(
            f"learn.lora_rank needs peft; install it with: {install_command('lora')}"
        ) from None
    check_targets(policy.model, targets)
    with torch.random.fork_rng(devices=[]):  # of the CPU
        torch.manual_seed(seed)
        lora_config = LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            target_modules=list(targets) or "all-linear",
            task_type="CAUSAL_LM",
        )
        try:
            model = get_peft_model(policy.model, lora_config)
        except ValueError as error:  # as for experts, whose weights are not in linear layers
            raise ConfigError(f"learn.lora_targets: {' '.join(str(error).split())[:300]}") from None
    return replace(policy, model=model)


def check_targets(model: Any, targets: Sequence[str]) -> None:
    """Raises if the model has no module of one of these names."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules() if name}
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module).__name__ in {"Linear", "Conv1D"}
    }
    for target in targets:
        if target not in names:
            raise ConfigError(
                f'learn.lora_targets: "{target}" is not a layer of this model.'
                f"{did_you_mean(target, linear)}"
            )
