"""Loads the model of a configuration: on its device, in its dtype, with its adapters."""

from __future__ import annotations

from dataclasses import replace

import torch

from glasshouse.config.schema import Config
from glasshouse.models.adapters import add_adapters
from glasshouse.models.chat_template import ChatOptions
from glasshouse.models.devices import (
    ModelSize,
    check_generator_memory,
    keep_freed_memory,
    resolve_device,
    resolve_dtype,
)
from glasshouse.models.policy import (
    LOADING_ERRORS,
    Policy,
    load_policy,
    loading_error,
    locate_model,
)
from glasshouse.models.tuning import tuning_for


def load_configured_policy(
    config: Config,
    *,
    training: bool,
    role: str = "learner",
    index: int = 0,
) -> Policy:
    """Loads `config.model`; raises before loading if its device, dtype or memory do not suffice.

    `role` is that of the process: a `learner` uses `device`, a `generator` `generate.device`, and a
    `controller`, which only holds weights, the CPU. `index` numbers the processes of a role. `training`
    adds adapters."""
    size = read_size(config.model)
    device = choose_device(config, size, role, index)
    dtype = resolve_dtype(config.dtype, device)
    if role == "generator":  # training is checked as a whole, in `training.memory_check`
        check_generator_memory(size, config, device)
    computes_here = role != "controller" and device.type == "cpu"
    if computes_here and tuning_for(size.parameters).keep_freed_memory:
        keep_freed_memory()
    policy = load_policy(config.model, ChatOptions.from_config(config.chat))
    if training and config.learn.lora_rank:  # on the CPU, so that they start equal on every device
        learn = config.learn
        policy = add_adapters(policy, learn.lora_rank, config.seed, learn.lora_targets)
    policy.model.to(device)
    return replace(policy, dtype=dtype)


def read_size(name: str) -> ModelSize:
    """The size of a model, without loading its weights."""
    folder = locate_model(name)
    try:
        return ModelSize.of(str(folder or name))
    except LOADING_ERRORS as error:
        raise loading_error(name, folder, error) from None


def choose_device(config: Config, size: ModelSize, role: str, index: int = 0) -> torch.device:
    """The device of a process with this role."""
    if role == "controller":
        return torch.device("cpu")
    if role == "generator" and config.generate.device:
        if config.backend == "monarch" and config.device in ("auto", "cuda"):
            index += config.monarch.learners  # the learners have the GPUs before it
        return resolve_device(config.generate.device, size.parameters, index, "generate.device")
    return resolve_device(config.device, size.parameters, index)
