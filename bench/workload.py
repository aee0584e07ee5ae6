"""The workload of both sides: the same model folder, prompts, sampling, reward and learning rate.

Problems come from one stream in one order, so that step n has the same prompts on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.measurement.evaluate import fill_task_options
from glasshouse.models.policy import Policy
from glasshouse.tasks.base import make_task
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.types import Style

TASK, STYLE = "sum_digits", Style.COT
REGIMES = {
    "natural": "completions end where the model ends them",
    "fixed": "every completion has the full length",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One regime at one size, on one model."""

    model: str
    regime: str = "natural"
    groups_per_step: int = 32
    group_size: int = 8
    max_tokens: int = 72
    learning_rate: float = 3e-4
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def ends(self) -> bool:
        """Whether the end-of-turn token ends a completion."""
        return self.regime == "natural"

    def config(
        self,
        threads: int,
        policy: Policy | None = None,
        *,
        skip: bool = True,
        chunk_size: int = 32,
        gradient_blocks: int = 1,
        learn: dict[str, Any] | None = None,
        **overrides: Any,
    ) -> Config:
        """The Glasshouse config of this workload; with a policy, at the difficulty it was trained on."""
        sections: dict[str, Any] = {
            "seed": self.seed,
            "model": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "threads": threads,
            "task": {"name": TASK, "style": STYLE},
            "data": {"groups_per_step": self.groups_per_step},
            "generate": {
                "group_size": self.group_size,
                "max_tokens": self.max_tokens,
                "chunk_size": chunk_size,
            },
            "learn": {
                "algorithm": "grpo",
                "learning_rate": self.learning_rate,
                "skip_zero_advantage": skip,
                "gradient_blocks": gradient_blocks,
                **(learn or {}),
            },
            "evaluate": {"problems": 0},
        }
        config = Config.model_validate({**sections, **overrides})
        return fill_task_options(config, policy.card) if policy else config

    def problems(self, config: Config) -> FreshProblems:
        return FreshProblems(make_task(TASK, config.task.options), Split.TRAIN, self.seed)
