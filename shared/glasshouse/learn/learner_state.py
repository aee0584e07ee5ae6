"""The state of a learner apart from the policy's weights: what a checkpoint saves and a resumed run continues from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glasshouse.errors import ModelError
from glasshouse.models.policy import check_tensor

ADAPTER_KEY = "weight"
"""Prefix of the adapter weights in `LearnerState.tensors`."""


@dataclass(frozen=True, slots=True)
class LearnerState:
    """The state of a learner apart from the policy's weights."""

    version: int
    tensors: dict[str, torch.Tensor]
    """The optimizer's, as `exp_avg/<parameter>`, `exp_avg_sq/<parameter>` and `step/<parameter>`, and
    adapters as `weight/<parameter>`. Empty if the learner is sharded."""
    save_shards: Callable[[Path], None] | None = None
    """Of a sharded learner: lets every rank write its parts of the tensors to the folder of a checkpoint."""
    folder: Path | None = None
    """Of a sharded learner that is restored: the checkpoint from which every rank reads its parts."""


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def collect_tensors(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """`LearnerState.tensors`: the optimizer's, and adapters, which the policy's saved weights contain merged."""
    tensors = {}
    for name, parameter in trained_parameters(model).items():
        if hasattr(model, "peft_config"):
            tensors[f"{ADAPTER_KEY}/{name}"] = parameter.detach().cpu().contiguous()
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value.cpu().contiguous()
    return tensors


def restore_tensors(model: Any, optimizer: torch.optim.Optimizer, state: LearnerState) -> None:
    """Copies the tensors of a state to the adapters and the optimizer. Raises before anything is changed if one is
    missing, unknown, or has another shape or type than the parameter."""
    keys = ["exp_avg", "exp_avg_sq", "step"] if state.version else []
    if hasattr(model, "peft_config"):
        keys.append(ADAPTER_KEY)
    expected = {
        f"{key}/{name}": (key, parameter)
        for key in keys
        for name, parameter in trained_parameters(model).items()
    }
    for path, (key, parameter) in expected.items():
        like = torch.zeros(()) if key == "step" else parameter
        check_tensor(path, state.tensors.get(path), like)
    if unknown := sorted(state.tensors.keys() - expected.keys()):
        raise ModelError(f"The tensor {unknown[0]} belongs to no parameter of the model.")
    optimizer.state.clear()
    with torch.no_grad():
        for path, (key, parameter) in expected.items():
            value = state.tensors[path]
            if key == ADAPTER_KEY:
                parameter.copy_(value)
            else:  # AdamW keeps its step count on the CPU
                device = "cpu" if key == "step" else parameter.device
                optimizer.state[parameter][key] = value.to(device, copy=True)
