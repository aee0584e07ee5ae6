"""The workload of both sides: the same model folder, prompts, sampling, reward and learning rate.

Problems come from one stream in one order, so that step n has the same prompts on both sides. A
regime defines the lengths of prompts and completions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse import randomness
from glasshouse.config.schema import Config
from glasshouse.measurement.evaluate import fill_task_options
from glasshouse.models.policy import POCKET_FOLDER, Policy
from glasshouse.tasks.base import Task, make_task
from glasshouse.tasks.streams import FreshProblems, Split
from glasshouse.types import Message, Problem, Style

TASK, STYLE, LEARNING_RATE = "sum_digits", Style.COT, 3e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Lengths of prompts and completions."""

    description: str
    max_tokens: int = 0
    """Longest completion; 0: the value of `--max-tokens`."""
    ends: bool = True
    """Whether the end-of-turn token ends a completion."""
    examples: int = 0
    """Solved examples before each question."""


REGIMES = {
    "natural": Regime(description="completions end where the model ends them"),
    "fixed": Regime(description="every completion has the full length", ends=False),
    "long-prompt": Regime(
        description="five solved examples in the prompt", max_tokens=16, examples=5
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One regime at one size, on one model."""

    model: str
    regime: str
    groups_per_step: int
    group_size: int
    max_tokens: int
    seed: int = 0
    learning_rate: float = LEARNING_RATE

    @property
    def folder(self) -> str:
        return str(POCKET_FOLDER) if self.model == "pocket" else str(Path(self.model).expanduser())

    @property
    def spec(self) -> Regime:
        return REGIMES[self.regime]

    @property
    def max_new_tokens(self) -> int:
        return self.spec.max_tokens or self.max_tokens

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
            "threads": threads,
            "task": {"name": TASK, "style": STYLE},
            "data": {"groups_per_step": self.groups_per_step},
            "generate": {
                "group_size": self.group_size,
                "max_tokens": self.max_new_tokens,
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
        return fill_task_options(config, policy) if policy else config

    def problems(self, config: Config) -> FreshProblems:
        return FreshProblems(make_task(TASK, config.task.options), Split.TRAIN, self.seed)

    def messages(self, task: Task[Any]) -> Callable[[Problem, Style], list[Message]]:
        """The function that builds the messages of a problem: the task's, or with solved examples."""
        task_messages = task.messages
        if not self.spec.examples:
            return task_messages
        solved = []
        for problem in FreshProblems(task, Split.TRAIN, self.seed + 1).take(self.spec.examples):
            answer = task.demonstrate(problem, "steps", randomness.stream("bench", problem.key))
            solved.append(f"{problem.question}\n{answer}\n")

        def with_examples(problem: Problem, style: Style) -> list[Message]:
            *before, last = task_messages(problem, style)
            content = "\n".join([*solved, last["content"]])
            return [*before, {"role": last["role"], "content": content}]

        return with_examples
