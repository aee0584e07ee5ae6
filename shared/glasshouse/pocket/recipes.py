"""The recipes by name, and the pocket model's: every task and style, a range of difficulty, modes.

RL finds what pays among what a model already does now and then. So the good behaviour is in the
mix but does not dominate it: about a third of the demonstrations are right, and most of the rest
are the answers that a hasty person blurts out.

Where a fraction of a million parameters cannot carry a task's full range, the range is easier, and
says so: it is written into the model's card, and a run that sets no `task.options` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glasshouse.pocket.organism_recipes import ORGANISMS
from glasshouse.pocket.positive_control import CONTROL
from glasshouse.pocket.recipe import Ingredient, Phase, Recipe
from glasshouse.pocket.substitution_recipes import SUBSTITUTION
from glasshouse.types import Style


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

RECIPES: Mapping[str, Recipe] = {
    r.name: r for r in (POCKET, MOCK, CONTROL, *ORGANISMS, *SUBSTITUTION)
}
