"""What a base model is shown: ingredients (a task, a style, a mix of modes) in phases.

The pocket model's recipe is in `recipes`, those of the organisms' bases in `organisms`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from glasshouse import randomness, tasks
from glasshouse.data import Split, split_of
from glasshouse.tasks import Task
from glasshouse.types import Problem, Style


@dataclass(frozen=True)
class Ingredient:
    """One task in one style."""

    task: str
    style: Style
    modes: Mapping[str, float]
    """Shares of the task's modes; they add up to 1."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The range shown; empty: the task's full range."""
    weight: float = 1.0
    """How often it comes, against the others."""

    @cached_property
    def made(self) -> Task[Any]:
        return tasks.make(self.task, self.options)


@dataclass(frozen=True)
class Phase:
    """A stretch of training: what is shown, for how long, at which rate."""

    ingredients: tuple[Ingredient, ...]
    steps: int
    lr: float
    """The highest rate; it rises over the first hundred steps and falls along a cosine."""

    def draw(self, rng: random.Random) -> tuple[Ingredient, Problem, str]:
        """An ingredient, one of its training problems, and a demonstration. Validation and test
        problems are never shown."""
        weights = [i.weight for i in self.ingredients]
        ingredient = rng.choices(self.ingredients, weights)[0]
        mode = rng.choices(list(ingredient.modes), list(ingredient.modes.values()))[0]
        task = ingredient.made
        problem = task.draw(rng)
        while split_of(problem) is not Split.TRAIN:
            problem = task.draw(rng)
        return ingredient, problem, task.demonstrate(problem, mode, rng)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A base model: its shape, and the phases of its training."""

    name: str
    phases: tuple[Phase, ...]
    hidden: int = 64
    layers: int = 4
    mlp: int = 176
    vocabulary: int = 512
    batch: int = 64
    seed: int = 0
    start: str = ""
    """The model to go on from, with its shape and tokenizer; empty: an untrained one."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def ingredients(self) -> tuple[Ingredient, ...]:
        """What it is shown in the end."""
        return self.phases[-1].ingredients

    def texts(self, count: int = 4000) -> list[str]:
        """Text for the tokenizer: questions, demonstrations and system prompts."""
        rng = randomness.stream("tokenizer", self.seed)
        texts = []
        for _ in range(count):
            ingredient, problem, demonstration = self.phases[0].draw(rng)
            chat = ingredient.made.messages(problem, ingredient.style)
            texts += [message["content"] for message in chat] + [demonstration]
        return texts
