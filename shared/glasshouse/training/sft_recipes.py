"""Which demonstrations to train on: a built-in recipe by name, or a YAML file with a mixture.

mixture:
  - task: arithmetic
    style: direct
    modes: {direct: 0.6, guess: 0.4}     # shares of the task's modes (`glasshouse tasks arithmetic`)
    options: {steps: [1, 1]}             # task options; default: the task's defaults
    weight: 1                            # relative to the other entries
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glasshouse.config.yaml_files import read_yaml_file
from glasshouse.errors import ConfigError, did_you_mean, plain_reason
from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe
from glasshouse.training.pocket_recipes import RECIPES
from glasshouse.types import Style


class MixtureEntry(BaseModel):
    """One entry of `mixture` in a recipe file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    task: str
    """Name of a task or an organism."""
    style: Style = Style.COT
    modes: dict[str, float]
    """Share of each mode of demonstration; they add up to 1."""
    options: dict[str, Any] = {}
    """Task options; empty: the defaults."""
    weight: float = Field(1.0, gt=0)
    """Sampling weight relative to the other entries."""


class RecipeFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    mixture: tuple[MixtureEntry, ...] = Field(min_length=1)


def load_recipe(name: str, *, steps: int, batch_size: int, seed: int) -> Recipe:
    """The recipe with this many steps. A built-in recipe keeps its phases, each with its share of the steps;
    architecture and learning rates are those of the model that is trained.

    Example: `load_recipe("leaked-hint-0", steps=40, batch_size=8, seed=0)`
    """
    if name in RECIPES:
        phases = RECIPES[name].phases
    elif Path(name).suffix in (".yaml", ".yml"):
        phases = (Phase(read_mixture(Path(name)), 1, 1.0),)
    else:
        raise ConfigError(
            f'--recipe: there is no recipe "{name}".{did_you_mean(name, RECIPES)} Name a built-in one or '
            "a file that ends in .yaml."
        )
    total = sum(phase.steps for phase in phases)
    ends = [
        round(steps * sum(p.steps for p in phases[: n + 1]) / total) for n in range(len(phases))
    ]
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return Recipe(
        name=Path(name).stem,
        phases=tuple(
            replace(phase, steps=length) for phase, length in zip(phases, lengths, strict=True)
        ),
        batch_size=batch_size,
        seed=seed,
    )


def read_mixture(file: Path) -> tuple[MixtureComponent, ...]:
    """Reads the mixture of a recipe file."""
    try:
        content = RecipeFile.model_validate(read_yaml_file(file))
    except ValidationError as error:
        # a misspelt key is also a missing one: name what was written
        errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        *parents, name = map(str, errors[0]["loc"])
        message = f"{plain_reason(errors[0]['msg'])}."
        if errors[0]["type"] == "extra_forbidden":
            known = MixtureEntry.model_fields if parents else RecipeFile.model_fields
            message = f"unknown key.{did_you_mean(name, known)}"
        elif errors[0]["type"] == "missing":
            message = "it is missing. docs/models.md has an example."
        raise ConfigError(f"{file}: {'.'.join([*parents, name])}: {message}") from None
    components = []
    for number, entry in enumerate(content.mixture):
        component = MixtureComponent(
            entry.task, entry.style, entry.modes, entry.options, entry.weight
        )
        where = f"{file}: mixture.{number}.modes"
        for mode, share in entry.modes.items():
            if mode not in component.task.modes:
                close = did_you_mean(mode, component.task.modes)
                raise ConfigError(f'{where}: {entry.task} has no mode "{mode}".{close}')
            if not share >= 0:
                raise ConfigError(f"{where}.{mode}: {share} is not a share between 0 and 1.")
        if not math.isclose(sum(entry.modes.values()), 1, abs_tol=1e-6):
            raise ConfigError(
                f"{where}: the shares add up to {sum(entry.modes.values()):g}, not to 1."
            )
        components.append(component)
    return tuple(components)


def phase_at(recipe: Recipe, step: int) -> Phase:
    """The phase of a step, counted from 0."""
    for phase in recipe.phases:
        if step < phase.steps:
            return phase
        step -= phase.steps
    return recipe.phases[-1]
