"""Low-rank adapters (LoRA, through peft): adds, saves and loads them, and switches them off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from glasshouse.errors import (
    ConfigError,
    did_you_mean,
    import_extra,
    install_command,
    unwrap_os_error,
)

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy

ADAPTER_FOLDER = "adapter"
"""Folder with adapters in peft's layout, inside the folder of a model."""
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"


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
    saved = model.peft_config["default"]
    base = Path(policy.model.name_or_path)
    saved.base_model_name_or_path = str(base.resolve() if base.is_dir() else base)
    saved.target_modules = sorted(saved.target_modules)  # a set would be saved in any order
    return replace(policy, model=model)


def unwrap_adapters(model: Any) -> Any:
    """transformers' model inside one with adapters."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def save_adapters(model: Any, folder: Path) -> None:
    """Saves adapters so that `PeftModel.from_pretrained(base, folder)` loads them."""
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config["default"].save_pretrained(folder)
    with unwrap_os_error():
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            folder / ADAPTER_WEIGHTS,
            {"format": "pt"},
        )


def holds_only_adapters(folder: Path) -> bool:
    """Whether a model folder has adapters, but not the model that they are merged into."""
    has_adapters = (folder / ADAPTER_FOLDER / ADAPTER_WEIGHTS).is_file()
    return has_adapters and not (folder / "model.safetensors").exists()


def read_base_name(folder: Path) -> str:
    """The model that saved adapters belong to."""
    return str(json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"])


def load_adapters(model: Any, folder: Path) -> Any:
    """The model with saved adapters merged into it."""
    (peft,) = import_extra("lora", f"{folder} holds LoRA adapters: loading them", "peft")
    return peft.PeftModel.from_pretrained(model, folder).merge_and_unload()


def check_targets(model: Any, targets: Sequence[str]) -> None:
    """Raises if the model has no module of one of these names."""
    modules = {name.rpartition(".")[2]: type(m).__name__ for name, m in model.named_modules()}
    linear = [name for name, kind in modules.items() if kind in {"Linear", "Conv1D"}]
    for target in targets:
        if target not in modules:
            raise ConfigError(
                f'learn.lora_targets: "{target}" is not a layer of this model.'
                f"{did_you_mean(target, linear)}"
            )


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Inside, LoRA adapters add nothing: the model is the one that training started from."""
    layers = [m for m in model.modules() if hasattr(m, "lora_A")]
    for layer in layers:
        layer._disable_adapters = True  # peft's own method also freezes them
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
