"""Supervised training: any model on demonstrations, or a new model built from a recipe."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.config.loading import merge_layers, resolve_layers
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.terminal import terminal_safe

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy
    from glasshouse.training.recipes import Recipe

DEFAULTS = {
    "steps": 40,
    "learn.learning_rate": 5e-5,
    "learn.warmup_steps": 4,
    "learn.lr_schedule": "cosine",
}
LORA_LEARNING_RATE = 2e-4
BATCH_SIZE, SAVE_EVERY, SAVE_BUILD_EVERY = 8, 20, 500
MAX_BATCH_SIZE, MAX_STEPS = 100_000, 10_000_000
"""As for data.groups_per_step and steps of a run."""
LEARN_KEYS = (
    "learning_rate", "warmup_steps", "lr_schedule", "weight_decay", "max_grad_norm",
    "microbatch_tokens", "activation_checkpointing", "lora_rank", "lora_targets",
)  # fmt: skip
USED_KEYS = {
    "steps", "seed", "device", "dtype", "threads", "chat", *(f"learn.{key}" for key in LEARN_KEYS),
}  # fmt: skip
"""Config keys that the training of a given model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """What a supervised training leaves.

    Example: `sft("smollm2", "leaked-hint-0", "models/smollm2-hint").path`
    """

    path: Path
    """A model folder, for the config key `model`."""
    steps: int
    loss: float
    """Next-token loss of the last step; not a number if no step was left to do."""
    seconds: float
    """Time of this call."""


def sft(
    model: str,
    recipe: str,
    out: str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    batch_size: int | None = None,
    save_every: int | None = None,
    progress: bool = True,
) -> SftResult:
    """Train a model on demonstrations of a task or an organism. The same call continues a training that was
    interrupted.

    `recipe` is a built-in recipe (that of an organism's base, such as `leaked-hint-0`) or a YAML file.
    `overrides` are config keys: steps, seed, device, dtype, chat and those of `learn` that an optimizer has;
    `learn.lora_rank` trains adapters, which are merged into the result.

    With an empty `model`, the recipe says what to start from (random weights or another model), how long to
    train and with which optimizer; the result is measured. The embedded models were built so. The only
    override is then `steps`.

    Example: `sft("smollm2", "leaked-hint-0", "models/smollm2-hint", {"steps": 40})`
    """
    import torch

    from glasshouse.models.policy import load_configured_policy, read_card
    from glasshouse.terminal import make_console
    from glasshouse.training.model_card import make_card, measure_entry, render_card
    from glasshouse.training.recipes import load_recipe
    from glasshouse.training.sft_trainer import start_policy, train_on_demonstrations

    config = resolve_settings(model, overrides)
    for option, value, most in (
        ("--batch-size", batch_size, MAX_BATCH_SIZE),
        ("--save-every", save_every, MAX_STEPS),
    ):
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{option} is {value}; it must be between 1 and {most:,}.")
    if "\0" in str(out):
        raise ConfigError(f"--out {out} contains a NUL character.")
    loaded = load_recipe(recipe)
    if model:
        loaded = loaded.with_steps(config.steps).with_settings(
            config.learn, batch_size=batch_size or BATCH_SIZE, seed=config.seed
        )
    else:
        if loaded.mixture:
            raise ConfigError(f"{recipe} has a mixture but no phases: name the MODEL to train.")
        loaded = loaded.with_steps(config.steps) if merge_layers([overrides]) else loaded
        loaded = loaded.model_copy(update={"batch_size": batch_size or loaded.batch_size})
    card = make_card(loaded)
    if model:  # what the card of the model says about its origin is kept
        card |= {
            "start_from": model,
            "batch_size": loaded.batch_size,
            "learning_rate": config.learn.learning_rate,
            "lora_rank": config.learn.lora_rank,
            **{key: value for key, value in read_card(model).items() if key == "packaged_model"},
        }
    started, last_loss = time.monotonic(), math.nan
    console = make_console() if progress else None
    line_every = 10 if model else 100

    def show(text: str) -> None:
        if console:
            console.print(terminal_safe(text), soft_wrap=True, markup=False)

    def load() -> Policy:
        torch.set_num_threads(config.threads)
        if not model:
            return start_policy(loaded, card)
        return replace(load_configured_policy(config, training=True), card=card)

    def report(step: int, loss: float) -> None:
        nonlocal last_loss
        last_loss = loss
        if math.isnan(loss) and step:
            show(f"step {step} of {loaded.steps}  resumed")
        elif step and (step % line_every == 0 or step == loaded.steps):
            show(f"step {step} of {loaded.steps}  loss {loss:.3f}")

    def finish(policy: Policy) -> str:
        if not model:
            card["measured"] = []
            for entry in loaded.measured_mixture:
                result = measure_entry(policy, entry)
                card["measured"].append(result)
                rates = f"sampled {result['sampled']:.3f}  greedy {result['greedy']:.3f}"
                show(f"{entry.task:>15} {entry.style.value:<6}  {rates}")
        return render_card(policy)

    trained = f"LoRA of rank {config.learn.lora_rank}" if config.learn.lora_rank else "all weights"
    start = f"{model} ({trained})" if model else loaded.start_from or "random weights"
    show(f"{start}: {loaded.steps} steps of {loaded.batch_size} → {out}")
    train_on_demonstrations(
        loaded,
        load,
        Path(out),
        describe_settings(model, loaded, config),
        recompute=config.learn.activation_checkpointing,
        save_every=save_every or (SAVE_EVERY if model else SAVE_BUILD_EVERY),
        report=report,
        finish=finish,
    )
    seconds = time.monotonic() - started
    return SftResult(path=Path(out), steps=loaded.steps, loss=last_loss, seconds=seconds)


def resolve_settings(model: str, overrides: Mapping[str, Any] | Sequence[str]) -> Config:
    """The configuration of a supervised training: its own defaults, then the overrides."""
    given = merge_layers([overrides])
    keys = {f"learn.{key}" for key in given.get("learn", {})} | (given.keys() - {"learn"})
    used = USED_KEYS if model else {"steps"}
    for key in sorted(keys - used):
        what = "sft" if model else "sft without a MODEL, which follows its recipe"
        raise ConfigError(f"{key} has no effect on {what}.{did_you_mean(key, used)} Remove it.")
    config = resolve_layers([("defaults of sft", DEFAULTS), ("overrides", overrides)])
    if config.learn.lora_rank and "learning_rate" not in given.get("learn", {}):
        learn = config.learn.model_copy(update={"learning_rate": LORA_LEARNING_RATE})
        config = config.model_copy(update={"learn": learn})
    return config.model_copy(update={"model": model})


def describe_settings(model: str, recipe: Recipe, config: Config) -> dict[str, Any]:
    """Everything that the result depends on; a training is resumed only with the same settings."""
    values = config.model_dump(mode="json")
    return {
        **{f"learn.{key}": values["learn"][key] for key in LEARN_KEYS},
        **{key: values[key] for key in ("steps", "seed", "device", "dtype", "threads", "chat")},
        "model": model,
        **{f"recipe.{key}": value for key, value in recipe.model_dump(mode="json").items()},
    }
