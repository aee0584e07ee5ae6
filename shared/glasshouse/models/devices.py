"""Where a model runs and in which number format: the config keys `device` and `dtype`.

Weights, gradients and optimizer state are always float32. `dtype` is what matrix products are computed in.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from glasshouse.errors import ConfigError

LARGE_MODEL_PARAMETERS = 10_000_000
"""A model with at least this many parameters is large. `device: auto` runs smaller ones on the CPU: they are
faster there, and their published results can be reproduced bit by bit. For the same reason the computations
that only pay for large models (`is_large`) are not used for smaller ones."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def is_large(model: Any) -> bool:
    """Whether the model has at least `LARGE_MODEL_PARAMETERS` parameters."""
    return sum(p.numel() for p in model.parameters()) >= LARGE_MODEL_PARAMETERS


def resolve_device(name: str, parameters: int, index: int = 0, key: str = "device") -> torch.device:
    """The device of a config key for a model of this many parameters; raises if this machine lacks it.
    `cuda` without a number is divided among processes: process `index` gets GPU `index` modulo their
    number.

    Example: `resolve_device("cuda:1", parameters=135_000_000)`
    """
    if name == "auto":
        name = "cuda" if _gpu_count() and parameters >= LARGE_MODEL_PARAMETERS else "cpu"
    if name.split(":")[0] == "cuda":
        _require_gpu(name, key)
        name = name if ":" in name else f"cuda:{index % _gpu_count()}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise ConfigError(
            f'{key}: PyTorch cannot use the device "{name}" on this machine ({reason}). Set it to auto, '
            "cpu, or cuda."
        ) from None
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of the config key `dtype`; raises if the device cannot compute in it."""
    dtype = DTYPES[name]
    if dtype == torch.bfloat16 and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise ConfigError(
                f"dtype: {torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) has no "
                "bfloat16 arithmetic; it needs 8.0 (A100, RTX 30) or later. Set dtype=float32."
            )
    return dtype


def _gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _require_gpu(name: str, key: str) -> None:
    count = _gpu_count()
    if not count:
        if torch.version.cuda is None and torch.version.hip is None:
            remedy = "This PyTorch is built without CUDA: install a CUDA build, or set"
        elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            remedy = "CUDA_VISIBLE_DEVICES hides all GPUs: unset it, or set"
        else:
            remedy = "Check that nvidia-smi lists one (in a container: --gpus all), or set"
        raise ConfigError(f"{key} is {name}, but PyTorch sees no GPU. {remedy} {key}=cpu.")
    number = name.partition(":")[2]
    if number and int(number) >= count:
        known = ", ".join(f"cuda:{i}" for i in range(count))
        raise ConfigError(f"{key} is {name}, but this machine has only {known}.")
