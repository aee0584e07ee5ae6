"""Trains any model on demonstrations, so that it can be killed at any time and resumed bit for bit.

    model, recipe ──► OUT.training/  settings.json, checkpoints/step-N   while it trains
                  ──► OUT/           a model folder, once it is finished

What a step computes depends only on the settings and its number, as for the pocket models. A signal
ends a step before its update; complete steps are saved.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glasshouse.checksums import read_regular_file
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, GlasshouseError, ModelError
from glasshouse.files import check_output_folder, write_json, write_text
from glasshouse.learn.schedule import learning_rate_factor
from glasshouse.models.configured import load_configured_policy
from glasshouse.models.packaged import write_checksums
from glasshouse.models.policy import Policy, check_tensor, read_card, save_policy
from glasshouse.runs.checkpoints import (
    Snapshot,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from glasshouse.training.pocket_build import compute_gradients, make_batch
from glasshouse.training.pocket_recipe import Recipe
from glasshouse.training.sft_card import describe_training, render_training
from glasshouse.training.sft_recipes import phase_at

SIGNALS = {signal.SIGINT, signal.SIGTERM}
SETTINGS = "settings.json"
StepReport = Callable[[int, float], None]
"""Called with the number of completed steps and the loss of the last one."""


def train_on_demonstrations(
    config: Config,
    recipe: Recipe,
    out: Path,
    *,
    save_every: int = 20,
    report: StepReport = lambda step, loss: None,
) -> Path:
    """Trains `config.model` and returns the folder of the result. Continues a training of the same settings
    that was interrupted; raises KeyboardInterrupt after it has saved the last complete step."""
    check_output_folder("--out", out.parent)
    if out.exists():
        raise ModelError(f"--out {out} exists; choose another name or delete it.")
    work = out.with_name(f"{out.name}.training")
    settings = describe_sft_settings(config, recipe)
    with _lock(work):
        _check_settings(work, settings)
        torch.set_num_threads(config.threads)
        try:
            policy = load_configured_policy(config, training=True)
        except GlasshouseError:
            if not (work / SETTINGS).exists():  # leave nothing behind for another --out
                shutil.rmtree(work)
            raise
        write_json(work / SETTINGS, settings)
        policy = replace(policy, card=describe_training(read_card(config.model), recipe, config))
        optimizer = make_optimizer(policy, config)
        step = saved = _restore(work, policy, optimizer)
        report(step, math.nan)
        with _signals_interrupt():
            try:
                while step < recipe.steps:
                    loss = train_step(policy, optimizer, config, recipe, step)
                    with _signals_blocked():
                        optimizer.step()
                        step += 1
                        if step % save_every == 0 and step < recipe.steps:
                            _save(work, policy, optimizer, step)
                            saved = step
                    report(step, loss)
            except KeyboardInterrupt:
                if step > saved:
                    with _signals_blocked():
                        _save(work, policy, optimizer, step)
                raise
            with _signals_blocked():
                _write_model(work, policy, out)
    shutil.rmtree(work)
    return out


def train_step(
    policy: Policy, optimizer: torch.optim.Optimizer, config: Config, recipe: Recipe, step: int
) -> float:
    """Computes the clipped gradient of one batch of demonstrations; returns its loss."""
    learn = config.learn
    factor = learning_rate_factor(learn, step, recipe.steps)
    for group in optimizer.param_groups:
        group["lr"] = learn.learning_rate * factor
    optimizer.zero_grad(set_to_none=True)
    samples = make_batch(recipe, phase_at(recipe, step), policy, step)
    loss = compute_gradients(
        policy, samples, learn.microbatch_tokens, recompute=learn.activation_checkpointing
    )
    norm = torch.nn.utils.clip_grad_norm_(
        optimizer.param_groups[0]["params"], learn.max_grad_norm or math.inf
    )
    if not torch.isfinite(norm):
        raise ConfigError(
            f"The gradient is not finite in step {step + 1}. Lower learn.learning_rate (now "
            f"{learn.learning_rate:g})."
        )
    return loss


def make_optimizer(policy: Policy, config: Config) -> torch.optim.AdamW:
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        parameters, lr=config.learn.learning_rate, weight_decay=config.learn.weight_decay,
        foreach=True,
    )  # fmt: skip


def describe_sft_settings(config: Config, recipe: Recipe) -> dict[str, Any]:
    """Everything that the result depends on; a training is resumed only with the same settings."""
    learn = config.learn.model_dump(mode="json")
    used = (
        "learning_rate", "warmup_steps", "lr_schedule", "weight_decay", "max_grad_norm",
        "microbatch_tokens", "activation_checkpointing", "lora_rank", "lora_targets",
    )  # fmt: skip
    card = describe_training({}, recipe, config)
    settings = {
        **{key: value for key, value in card.items() if key not in used},
        "phases": [phase.steps for phase in recipe.phases],
        "chat": config.chat.model_dump(mode="json"),
        "device": config.device,
        "dtype": config.dtype,
        "threads": config.threads,
        **{f"learn.{key}": learn[key] for key in used},
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _check_settings(work: Path, settings: dict[str, Any]) -> None:
    """Raises if the folder holds a training with other settings."""
    file = work / SETTINGS
    if not file.exists():
        return
    try:
        saved = json.loads(read_regular_file(file))
        if not isinstance(saved, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError):
        raise ModelError(f"{file} is damaged. Delete {work} to start again.") from None
    for key in settings:
        if saved.get(key) != settings[key]:
            raise ModelError(
                f"{work} holds an interrupted training with another {key} ({saved.get(key)}, now "
                f"{settings[key]}). Repeat its command to continue it, delete it to start again, or choose "
                "another --out."
            )


def _save(work: Path, policy: Policy, optimizer: torch.optim.Optimizer, step: int) -> None:
    state = {"step": step, "reward": None, "reason": "supervised"}
    weights = {} if _has_adapters(policy) else policy.weights()
    snapshot = Snapshot(
        state=state,
        weights={name: tensor.cpu() for name, tensor in weights.items()},
        learner=optimizer_tensors(policy, optimizer),
        save_model=lambda folder: save_policy(policy, folder),
    )
    write_checkpoint(work / "checkpoints", snapshot)
    prune_checkpoints(work / "checkpoints", ("previous", "last"))


def _restore(work: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> int:
    """Continues from the newest valid checkpoint; returns its step, 0 without one."""
    checkpoint, _ = newest_checkpoint(work / "checkpoints")
    if checkpoint is None:
        return 0
    _, weights, tensors = read_checkpoint(checkpoint.path)
    if not _has_adapters(policy):
        policy.load_weights(weights)
    load_optimizer_tensors(policy, optimizer, tensors)
    return checkpoint.step


def optimizer_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state as `exp_avg/<parameter>`, …, and adapters, which saved models have merged, as
    `weight/<parameter>`."""
    tensors = {}
    for name, parameter in _trained_parameters(policy):
        if _has_adapters(policy):
            tensors[f"weight/{name}"] = parameter.detach().cpu().contiguous()
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value.cpu().contiguous()
    return tensors


def load_optimizer_tensors(
    policy: Policy, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    keys = ("exp_avg", "exp_avg_sq", "step") if any(n.startswith("step/") for n in tensors) else ()
    for name, parameter in _trained_parameters(policy):
        if _has_adapters(policy):
            check_tensor(f"weight/{name}", tensors.get(f"weight/{name}"), parameter)
            with torch.no_grad():
                parameter.copy_(tensors[f"weight/{name}"])
        for key in keys:
            value = tensors.get(f"{key}/{name}")
            check_tensor(f"{key}/{name}", value, torch.zeros(()) if key == "step" else parameter)
            assert value is not None
            # AdamW keeps its step count on the CPU
            device = "cpu" if key == "step" else parameter.device
            optimizer.state[parameter][key] = value.to(device, copy=True)


def _trained_parameters(policy: Policy) -> list[tuple[str, torch.nn.Parameter]]:
    return [(n, p) for n, p in policy.model.named_parameters() if p.requires_grad]


def _has_adapters(policy: Policy) -> bool:
    return hasattr(policy.model, "peft_config")


def _write_model(work: Path, policy: Policy, out: Path) -> None:
    """Writes the model folder beside the checkpoints and renames it to OUT."""
    folder = work / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_policy(policy, folder)
    write_text(folder / "README.md", render_training(policy.card))
    write_checksums(folder)
    os.rename(folder, out)


@contextmanager
def _lock(work: Path) -> Iterator[None]:
    work.mkdir(parents=True, exist_ok=True)
    with open(work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(f"Another process is training in {work}.") from None
        yield


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Both signals raise KeyboardInterrupt, also in a process that was started with SIGINT ignored, as a
    shell starts those in the background."""
    try:
        previous = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    except ValueError:  # not the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Signals wait: an update or a save that has begun is completed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
