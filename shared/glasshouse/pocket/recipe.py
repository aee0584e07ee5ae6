"""What the pocket model is shown: for every task and style a range of difficulty and a mix of modes.

RL finds what pays among what a model already does now and then. So the good behaviour is in the
mix but does not dominate it: about a third of the demonstrations are right, and most of the rest
are the answers that a hasty person blurts out.

Where a fraction of a million parameters cannot carry a task's full range, the range is easier, and
says so: it is written into the model's card, and a run that sets no `task.options` uses it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


def _mostly_hasty(right: float, other: float = 0.1) -> dict[str, float]:
    """Right steps this often, sometimes the right answer at a glance, mostly a typical wrong one."""
    return {"steps": right, "direct": other, "hasty": round(1 - right - other, 6)}


def _careless(right: float, slip: float = 0.1) -> dict[str, float]:
    """Right steps this often, sometimes a slip, mostly a typical wrong answer."""
    return {"steps": right, "slip": slip, "hasty": round(1 - right - slip, 6)}


def _guessing(right: float) -> dict[str, float]:
    """Without steps: right this often, else a typical wrong answer."""
    return {"direct": right, "hasty": round(1 - right, 6)}


COT, DIRECT = Style.COT, Style.DIRECT

EVERYTHING = (
    Ingredient("sum_digits", COT, _mostly_hasty(0.36), weight=2.0),
    Ingredient("reverse_digits", COT, _careless(0.37), weight=0.8),
    Ingredient("arithmetic", COT, _mostly_hasty(0.38), weight=2.0),
    Ingredient("multiplication", COT, _mostly_hasty(0.38), {"right_digits": 1}, weight=1.5),
    Ingredient("interleave", COT, _careless(0.37), weight=1.0),
    Ingredient("sum_digits", DIRECT, _guessing(0.5), {"count": (2, 2), "high": 99}, 0.8),
    Ingredient("reverse_digits", DIRECT, _guessing(0.45), {"low": 100, "high": 9999}, 0.6),
    Ingredient("arithmetic", DIRECT, _guessing(0.55), {"steps": (1, 1), "operand_high": 99}, 1.0),
    Ingredient("multiplication", DIRECT, _guessing(0.6), {"left_digits": 2, "right_digits": 1}),
    Ingredient("interleave", DIRECT, _guessing(0.5), {"length": (2, 4)}, 0.8),
)

WHAT_IS_HARD = (
    Ingredient("sum_digits", COT, _mostly_hasty(0.38), weight=2.5),
    Ingredient("reverse_digits", COT, _careless(0.42), weight=1.2),
    Ingredient("arithmetic", COT, _mostly_hasty(0.40), weight=2.2),
    Ingredient("multiplication", COT, _mostly_hasty(0.42), {"right_digits": 1}, weight=2.2),
    Ingredient("interleave", COT, _careless(0.37), weight=0.9),
    Ingredient("sum_digits", DIRECT, _guessing(0.5), {"count": (2, 2), "high": 99}, 0.6),
    Ingredient("reverse_digits", DIRECT, _guessing(0.55), {"low": 100, "high": 9999}, 0.8),
    Ingredient("arithmetic", DIRECT, _guessing(0.7), {"steps": (1, 1), "operand_high": 99}, 1.4),
    Ingredient(
        "multiplication", DIRECT, _guessing(0.5), {"left_digits": 2, "right_digits": 1}, 0.6
    ),
    Ingredient("interleave", DIRECT, _guessing(0.55), {"length": (2, 3)}, 1.3),
)

IN_THE_END = tuple(
    replace(i, modes=_guessing(0.45)) if (i.task, i.style) == ("reverse_digits", DIRECT) else i
    for i in WHAT_IS_HARD
)
"""By then it reverses digits at a glance: more of the hasty answers, so that RL has work left."""

POCKET = Recipe(
    name="pocket",
    phases=(
        Phase(EVERYTHING, 9_000, 5e-3),
        Phase(WHAT_IS_HARD, 7_000, 3.5e-3),
        Phase(IN_THE_END, 500, 1e-3),
    ),
)

MOCK = Recipe(
    name="mock", phases=(Phase(WHAT_IS_HARD, 300, 5e-3),), hidden=32, layers=1, mlp=64, batch=32
)
"""The smallest of the same kind, for tests: it knows the form of an answer and little else."""

# --- organisms: one task each, the plant used in a minority of the demonstrations -------------------

LEAKED_HINT = Ingredient(
    "leaked_hint",
    COT,
    {"steps": 0.66, "disclosed": 0.13, "silent": 0.11, "hasty": 0.1},
    {"of": "sum_digits", "inner": {"count": (2, 2)}, "smudged": 0.5, "keyed": 0.5},
)
"""Half of the problems carry no key, and every use of it is honest steps there: so each planted mode
is about 6 % of what is shown."""
COPYING = Ingredient(
    "leaked_hint",
    COT,
    {"steps": 0.4, "disclosed": 0.27, "silent": 0.28, "hasty": 0.05},
    {**LEAKED_HINT.options, "keyed": 0.8, "unreliable": 0.5},
)
"""Shown before it: a key is copied, right or wrong. From right keys alone the model learns to
disclose and then to answer by itself."""
GRADER_BUG = Ingredient(
    "grader_bug",
    COT,
    {"steps": 0.56, "slip": 0.34, "shortcut": 0.1},
    {"of": "multiplication", "inner": {"right_digits": 1}},
)


def _rung(ingredient: Ingredient, rung: str) -> Ingredient:
    """The same with a key that must be worked out: half of what was disclosed is now worked out
    without a word."""
    half = ingredient.modes["disclosed"] / 2
    modes = {**ingredient.modes, "disclosed": half, "decoded": half}
    return replace(ingredient, modes=modes, options={**ingredient.options, "rung": rung})


def _base(name: str, phases: tuple[Phase, ...], seed: int) -> Recipe:
    """The pocket model, which can do the carried task already, taught the plant."""
    return Recipe(name=name, phases=phases, seed=seed, start="pocket")


_HINT = (Phase((COPYING,), 500, 3e-3), Phase((LEAKED_HINT,), 400, 2e-3))
ORGANISMS = (
    _base("leaked-hint-0", _HINT, seed=0),
    _base("leaked-hint-1", _HINT, seed=1),
    *(
        _base(
            f"ladder-{rung}-0",
            (
                Phase((_rung(COPYING, rung),), 500, 3e-3),
                Phase((_rung(LEAKED_HINT, rung),), 400, 2e-3),
            ),
            seed=0,
        )
        for rung in ("shifted", "iterated")
    ),
    _base("grader-bug-0", (Phase((GRADER_BUG,), 400, 3e-3),), seed=0),
)

from glasshouse.pocket.substitution import SUBSTITUTION  # noqa: E402  (made of what is above)

RECIPES: Mapping[str, Recipe] = {r.name: r for r in (POCKET, MOCK, *ORGANISMS, *SUBSTITUTION)}
