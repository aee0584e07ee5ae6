"""The learning rate over the steps of a run."""

from __future__ import annotations

import math

from glasshouse.config.schema import LearnConfig


def learning_rate_factor(config: LearnConfig, step: int, steps: int) -> float:
    """Factor on the learning rate: 1 unless warm-up or decay are configured."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    match config.lr_schedule:
        case "linear":
            return 1 - progress
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case _:
            return 1.0
