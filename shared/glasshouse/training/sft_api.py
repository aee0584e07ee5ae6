"""A supervised warm start: train any model on demonstrations."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse.config.loading import merge_layers, resolve_layers
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, did_you_mean
from glasshouse.terminal import terminal_safe

__all__ = ["SftResult", "sft"]

DEFAULTS = {
    "steps": 40,
    "learn.learning_rate": 5e-5,
    "learn.warmup_steps": 4,
    "learn.lr_schedule": "cosine",
}
LORA_LEARNING_RATE = 2e-4
MAX_BATCH_SIZE, MAX_STEPS = 100_000, 10_000_000
"""As for data.groups_per_step and steps of a run."""
USED_KEYS = {
    "steps", "seed", "device", "dtype", "threads", "chat",
    *(
        f"learn.{key}"
        for key in (
            "learning_rate", "warmup_steps", "lr_schedule", "weight_decay", "max_grad_norm",
            "microbatch_tokens", "activation_checkpointing", "lora_rank", "lora_targets",
        )
    ),
}  # fmt: skip
"""Config keys that a supervised training reads."""


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
    batch_size: int = 8,
    save_every: int = 20,
    progress: bool = True,
) -> SftResult:
    """Train a model on demonstrations of a task or an organism. The same call continues a training that was
    interrupted.

    `recipe` is a built-in recipe (that of an organism's base, such as `leaked-hint-0`) or a YAML file
    with a mixture. `overrides` are config keys: steps, seed, device, dtype, chat and those of `learn` that
    an optimizer has; `learn.lora_rank` trains adapters, which are merged into the result.

    Example: `sft("smollm2", "leaked-hint-0", "models/smollm2-hint", {"steps": 40})`
    """
    from glasshouse.training.sft import train_on_demonstrations
    from glasshouse.training.sft_recipes import load_recipe

    config = resolve_settings(model, overrides)
    for option, value, most in (
        ("--batch-size", batch_size, MAX_BATCH_SIZE),
        ("--save-every", save_every, MAX_STEPS),
    ):
        if not 1 <= value <= most:
            raise ConfigError(f"{option} is {value}; it must be between 1 and {most:,}.")
    if "\0" in str(out):
        raise ConfigError(f"--out {out} contains a NUL character.")
    loaded = load_recipe(recipe, steps=config.steps, batch_size=batch_size, seed=config.seed)
    started, losses = time.monotonic(), [math.nan]
    with _Progress(config, batch_size, Path(out), enabled=progress) as display:

        def report(step: int, loss: float) -> None:
            losses.append(loss)
            display.update(step, loss)

        path = train_on_demonstrations(
            config, loaded, Path(out), save_every=save_every, report=report
        )
    return SftResult(
        path=path, steps=config.steps, loss=losses[-1], seconds=time.monotonic() - started
    )


def resolve_settings(model: str, overrides: Mapping[str, Any] | Sequence[str]) -> Config:
    """The configuration of a supervised training: its own defaults, then the overrides."""
    given = merge_layers([overrides])
    keys = {f"learn.{key}" for key in given.get("learn", {})} | (given.keys() - {"learn"})
    for key in sorted(keys - USED_KEYS):
        raise ConfigError(f"{key} has no effect on sft.{did_you_mean(key, USED_KEYS)} Remove it.")
    config = resolve_layers([("defaults of sft", DEFAULTS), ("overrides", overrides)])
    if config.learn.lora_rank and "learning_rate" not in given.get("learn", {}):
        learn = config.learn.model_copy(update={"learning_rate": LORA_LEARNING_RATE})
        config = config.model_copy(update={"learn": learn})
    return config.model_copy(update={"model": model})


class _Progress:
    """A progress bar on a terminal, else a line every ten steps."""

    def __init__(self, config: Config, batch_size: int, out: Path, *, enabled: bool) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        from glasshouse.console import make_console, shows_bars

        self.steps, self.enabled = config.steps, enabled
        self.console = make_console()
        self.has_bar = enabled and shows_bars(self.console)
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"), TimeRemainingColumn(), console=self.console,
            disable=not self.has_bar,
        )  # fmt: skip
        adapters = (
            f"LoRA of rank {config.learn.lora_rank}" if config.learn.lora_rank else "all weights"
        )
        self.title = f"{config.model} ({adapters}): {config.steps} steps of {batch_size} → {out}"

    def __enter__(self) -> _Progress:
        if self.enabled:
            self.console.print(terminal_safe(self.title), soft_wrap=True, markup=False)
        self.progress.start()
        self.task = self.progress.add_task("train", total=self.steps, loss="")
        return self

    def update(self, step: int, loss: float) -> None:
        text = "" if math.isnan(loss) else f"loss {loss:.3f}"
        self.progress.update(self.task, completed=step, loss=text)
        is_due = step % 10 == 0 or step == self.steps or not text
        if self.enabled and not self.has_bar and is_due and step:
            self.console.print(f"step {step} of {self.steps}  {text or 'resumed'}", markup=False)

    def __exit__(self, *error: object) -> None:
        self.progress.stop()
