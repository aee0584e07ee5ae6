"""The work both sides do: the same model folder, prompts, sampling, reward and learning rate.

Problems come from one stream in one order, so that step n asks the same questions on both sides.
A regime says how long prompts and completions are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glasshouse import randomness, tasks
from glasshouse.config import Config
from glasshouse.data import Fresh, Split
from glasshouse.models.policy import POCKET, Policy
from glasshouse.train.build import with_ranges
from glasshouse.types import Message, Problem, Style

TASK, STYLE, RATE = "sum_digits", Style.COT, 3e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How long things are."""

    about: str
    max_tokens: int = 0
    """Longest completion; 0: what the command line says."""
    ends: bool = True
    """Whether the end-of-turn token ends a completion."""
    examples: int = 0
    """Solved examples put before each question."""


REGIMES = {
    "natural": Regime(about="completions end where the model ends them"),
    "fixed": Regime(about="every completion has the full length", ends=False),
    "long-prompt": Regime(about="five solved examples in the prompt", max_tokens=16, examples=5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One regime at one size, on one model."""

    model: str
    regime: str
    problems: int
    samples: int
    max_tokens: int
    seed: int = 0

    @property
    def folder(self) -> str:
        return str(POCKET) if self.model == "pocket" else str(Path(self.model).expanduser())

    @property
    def spec(self) -> Regime:
        return REGIMES[self.regime]

    @property
    def longest(self) -> int:
        return self.spec.max_tokens or self.max_tokens

    def config(
        self,
        threads: int,
        policy: Policy | None = None,
        *,
        skip: bool = True,
        chunk: int = 32,
        blocks: int = 1,
        **changed: Any,
    ) -> Config:
        """A Glasshouse run that does this work; with a policy, at the difficulty it was shown."""
        tree: dict[str, Any] = {
            "seed": self.seed,
            "model": self.model,
            "threads": threads,
            "task": {"name": TASK, "style": STYLE},
            "data": {"groups_per_step": self.problems},
            "generate": {
                "group_size": self.samples,
                "max_tokens": self.longest,
                "chunk_size": chunk,
            },
            "learn": {
                "algorithm": "grpo",
                "learning_rate": RATE,
                "skip_zero_advantage": skip,
                "gradient_blocks": blocks,
            },
            "evaluate": {"problems": 0},
        }
        config = Config.model_validate({**tree, **changed})
        return with_ranges(config, policy) if policy else config

    def stream(self, config: Config) -> Fresh:
        return Fresh(tasks.make(TASK, config.task.options), Split.TRAIN, self.seed)

    def asking(self, task: tasks.Task[Any]) -> Callable[[Problem, Style], list[Message]]:
        """How a problem is asked: by the task, or after solved examples."""
        ask = task.messages
        if not self.spec.examples:
            return ask
        shown = []
        for problem in Fresh(task, Split.TRAIN, self.seed + 1).take(self.spec.examples):
            answer = task.demonstrate(problem, "steps", randomness.stream("bench", problem.key))
            shown.append(f"{problem.question}\n{answer}\n")

        def after_examples(problem: Problem, style: Style) -> list[Message]:
            *before, last = ask(problem, style)
            content = "\n".join([*shown, last["content"]])
            return [*before, {"role": last["role"], "content": content}]

        return after_examples
