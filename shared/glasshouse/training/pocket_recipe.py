"""Training recipes for base models: a mixture of demonstrations per training phase."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from glasshouse import randomness
from glasshouse.tasks.base import Task
from glasshouse.tasks.catalogue import make_task
from glasshouse.tasks.splits import Split, assign_split
from glasshouse.types import Problem, Style


@dataclass(frozen=True)
class MixtureComponent:
    """Demonstrations of one task in one style."""

    task_name: str
    style: Style
    modes: Mapping[str, float]
    """Share of each mode; they add up to 1."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Task options; empty: the defaults."""
    weight: float = 1.0
    """Sampling weight relative to the other components."""

    @cached_property
    def task(self) -> Task[Any]:
        return make_task(self.task_name, self.options)


@dataclass(frozen=True)
class Phase:
    """One phase of supervised training."""

    mixture: tuple[MixtureComponent, ...]
    steps: int
    learning_rate: float
    """Peak learning rate, after a linear warm-up and before a cosine decay."""

    def draw_demonstration(self, rng: random.Random) -> tuple[MixtureComponent, Problem, str]:
        """Draws a component, one of its training problems, and a demonstration. Validation and test
        problems are never drawn."""
        weights = [component.weight for component in self.mixture]
        component = rng.choices(self.mixture, weights)[0]
        mode = rng.choices(list(component.modes), list(component.modes.values()))[0]
        task = component.task
        problem = task.draw(rng)
        while assign_split(problem) is not Split.TRAIN:
            problem = task.draw(rng)
        return component, problem, task.demonstrate(problem, mode, rng)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A base model: its architecture and its training phases."""

    name: str
    phases: tuple[Phase, ...]
    hidden_size: int = 64
    num_layers: int = 4
    intermediate_size: int = 176
    vocab_size: int = 512
    phrases: bool = False
    """Tokens may span several words, so that prompts are shorter."""
    batch_size: int = 64
    microbatch_tokens: int = 1024
    """Tokens per forward and backward pass: as many as fit into a core's cache."""
    seed: int = 0
    start_from: str = ""
    """The model whose weights, architecture and tokenizer to start from; empty: random weights."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def mixture(self) -> tuple[MixtureComponent, ...]:
        """The mixture of the last phase, on which the model is measured."""
        return self.phases[-1].mixture

    def tokenizer_texts(self, count: int = 4000) -> list[str]:
        """Texts to train the tokenizer on: system prompts, questions and demonstrations."""
        rng = randomness.stream("tokenizer", self.seed)
        texts = []
        for _ in range(count):
            component, problem, demonstration = self.phases[0].draw_demonstration(rng)
            messages = component.task.messages(problem, component.style)
            texts += [message["content"] for message in messages] + [demonstration]
        return texts
