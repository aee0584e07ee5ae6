"""Recipes of supervised training: which demonstrations to train on, and how.

A recipe is a YAML file. Those of the embedded models are in pocket/recipes/ and known by name. A file needs
only a mixture; one with phases can also build a model from random weights:

    mixture:
      - task: arithmetic
        style: direct
        modes: {direct: 0.6, guess: 0.4}     # shares of the task's modes (`glasshouse tasks arithmetic`)
        options: {steps: [1, 1]}             # task options; default: the task's defaults
        weight: 1                            # relative to the other entries
"""

from __future__ import annotations

import math
import random
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from glasshouse import randomness
from glasshouse.config.loading import read_yaml_file
from glasshouse.config.schema import LearnConfig
from glasshouse.errors import ConfigError, did_you_mean, validate_options
from glasshouse.tasks.base import Task, make_task
from glasshouse.tasks.streams import Split, assign_split
from glasshouse.types import Problem, Style

FOLDER = Path(__file__).parent.parent / "pocket" / "recipes"


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class MixtureEntry(_Settings):
    """Demonstrations of one task in one style."""

    task: str
    """Name of a task or an organism."""
    style: Style = Style.COT
    modes: dict[str, float]
    """Share of each mode of demonstration; they add up to 1."""
    options: dict[str, Any] = {}
    """Task options; empty: the defaults."""
    weight: float = Field(1.0, gt=0)
    """Sampling weight relative to the other entries."""

    @cached_property
    def built_task(self) -> Task[Any]:
        return make_task(self.task, self.options)

    def check_modes(self, where: str) -> None:
        """Raise if the task lacks a mode, or if the shares do not add up to 1."""
        for mode, share in self.modes.items():
            if mode not in self.built_task.modes:
                close = did_you_mean(mode, self.built_task.modes)
                raise ConfigError(f'{where}: {self.task} has no mode "{mode}".{close}')
            if not share >= 0:
                raise ConfigError(f"{where}.{mode}: {share} is not a share between 0 and 1.")
        if not math.isclose(sum(self.modes.values()), 1, abs_tol=1e-6):
            total = sum(self.modes.values())
            raise ConfigError(f"{where}: the shares add up to {total:g}, not to 1.")


class Phase(_Settings):
    """One phase of supervised training."""

    steps: int = Field(1, ge=1)
    learning_rate: float = Field(5e-5, gt=0)
    """Peak learning rate."""
    mixture: tuple[MixtureEntry, ...] = Field(min_length=1)

    def draw_demonstration(self, rng: random.Random) -> tuple[MixtureEntry, Problem, str]:
        """Draw an entry, one of its training problems, and a demonstration. Validation and test
        problems are never drawn."""
        entry = rng.choices(self.mixture, [entry.weight for entry in self.mixture])[0]
        mode = rng.choices(list(entry.modes), list(entry.modes.values()))[0]
        task = entry.built_task
        problem = task.draw(rng)
        while assign_split(problem) is not Split.TRAIN:
            problem = task.draw(rng)
        return entry, problem, task.demonstrate(problem, mode, rng)


class Recipe(_Settings):
    """What to train on and how; for a model that is built, also what to start from."""

    name: str = ""
    """Of the file, without its ending; it keys the demonstrations."""
    phases: tuple[Phase, ...] = ()
    mixture: tuple[MixtureEntry, ...] = ()
    """Instead of phases: a single one, as long as the training."""
    seed: int = 0

    start_from: str = ""
    """The model to start from; empty: random weights, with the five keys below."""
    hidden_size: int = 64
    num_layers: int = 4
    intermediate_size: int = 176
    vocab_size: int = 512
    phrases: bool = False
    """Tokens may span several words, so that prompts are shorter."""
    system_prompt_phases: int = Field(0, ge=0)
    """In so many of the last phases the prompts contain the system message. The others, which learn the tasks, have
    shorter prompts. 0: the model's chat template drops system messages."""

    batch_size: int = 64
    microbatch_tokens: int = 1024
    """Tokens per forward and backward pass: as many as fit into a core's cache."""
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    warmup_steps: int = 100
    lr_schedule: Literal["restarts", "constant", "linear", "cosine"] = "restarts"
    """`restarts`: every phase has a new optimizer, a warm-up, and a cosine decay to 2 % that begins with
    it. The others are those of the config key learn.lr_schedule, over all phases."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def measured_mixture(self) -> tuple[MixtureEntry, ...]:
        """The mixture of the last phase, on which the model is measured."""
        return self.phases[-1].mixture

    def phase_at(self, step: int) -> tuple[Phase, int]:
        """The phase of a step, counted from 0, and the step within the phase."""
        for phase in self.phases:
            if step < phase.steps:
                return phase, step
            step -= phase.steps
        return self.phases[-1], step

    def shows_system_prompt(self, step: int) -> bool:
        """Whether the prompts of a step contain the system message, if the chat template renders it."""
        hidden = self.phases[: -self.system_prompt_phases] if self.system_prompt_phases else ()
        return step >= sum(phase.steps for phase in hidden)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        phase, step_of_phase = self.phase_at(step)
        if self.lr_schedule == "restarts":
            warmup = min(1.0, (step_of_phase + 1) / self.warmup_steps)
            decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step_of_phase / phase.steps))
            return phase.learning_rate * (warmup * decay)
        learn = LearnConfig(warmup_steps=self.warmup_steps, lr_schedule=self.lr_schedule)
        return phase.learning_rate * learn.rate_factor(step, self.steps)

    def with_steps(self, steps: int) -> Recipe:
        """The same recipe with this many steps; each phase keeps its share of them."""
        total, done, phases = self.steps, 0, []
        for number, phase in enumerate(self.phases):
            end = round(steps * sum(p.steps for p in self.phases[: number + 1]) / total)
            phases.append(phase.model_copy(update={"steps": end - done}))
            done = end
        return self.model_copy(update={"phases": tuple(phases)})

    def with_settings(self, learn: LearnConfig, *, batch_size: int, seed: int) -> Recipe:
        """The same demonstrations for another model, with the optimizer of a configuration."""
        phases = tuple(
            phase.model_copy(update={"learning_rate": learn.learning_rate}) for phase in self.phases
        )
        settings: dict[str, Any] = {
            "phases": phases, "batch_size": batch_size, "seed": seed, "start_from": "", "betas": (0.9, 0.999),
            "weight_decay": learn.weight_decay, "max_grad_norm": learn.max_grad_norm,
            "microbatch_tokens": learn.microbatch_tokens, "warmup_steps": learn.warmup_steps,
            "lr_schedule": learn.lr_schedule,
        }  # fmt: skip
        return self.model_copy(update=settings)

    def tokenizer_texts(self, count: int = 4000) -> list[str]:
        """Texts to train the tokenizer on: system prompts, questions and demonstrations."""
        rng = randomness.stream("tokenizer", self.seed)
        texts = []
        for _ in range(count):
            entry, problem, demonstration = self.phases[0].draw_demonstration(rng)
            messages = entry.built_task.messages(problem, entry.style)
            texts += [message["content"] for message in messages] + [demonstration]
        return texts


def list_recipes() -> list[str]:
    """The names of the built-in recipes."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def load_recipe(name: str) -> Recipe:
    """Load a built-in recipe by name, or a YAML file.

    Example: `load_recipe("leaked-hint-0").phases[0].learning_rate`
    """
    if name in list_recipes():
        file = FOLDER / f"{name}.yaml"
    elif Path(name).suffix in (".yaml", ".yml"):
        file = Path(name)
    else:
        raise ConfigError(
            f'--recipe: there is no recipe "{name}".{did_you_mean(name, list_recipes())} Name a built-in one '
            "or a file that ends in .yaml."
        )
    content = read_yaml_file(file)
    if base := content.pop("extends", None):
        content = read_yaml_file(FOLDER / f"{base}.yaml") | content
    recipe: Recipe = validate_options(Recipe, content, str(file))
    if bool(recipe.phases) == bool(recipe.mixture):
        raise ConfigError(
            f"{file}: give either a mixture or phases. docs/models.md has an example."
        )
    phases = recipe.phases or (Phase(mixture=recipe.mixture),)
    for phase in phases:
        for number, entry in enumerate(phase.mixture):
            entry.check_modes(f"{file}: mixture.{number}.modes")
    return recipe.model_copy(update={"name": file.stem, "phases": phases})
