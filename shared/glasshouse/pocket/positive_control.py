"""The recipe of the positive control's base: the pocket model, taught products of three digits by two.

Long multiplication is more than the pocket model was shown. It is learned from steps that are mostly
right, and in the end shown as seldom as elsewhere, so that RL has work left. Arithmetic and
interleaving are kept up beside it, so that one base serves the control and what it is a rehearsal for.
"""

from __future__ import annotations

from glasshouse.pocket.recipe import Ingredient, Phase, Recipe
from glasshouse.types import Style

LONG = {"right_digits": 2}

BESIDE = (
    Ingredient("arithmetic", Style.COT, {"steps": 0.4, "direct": 0.1, "hasty": 0.5}),
    Ingredient(
        "arithmetic",
        Style.DIRECT,
        {"direct": 0.65, "hasty": 0.35},
        {"steps": (1, 1), "operand_high": 99},
        0.7,
    ),
    Ingredient("multiplication", Style.DIRECT, {"direct": 0.6, "hasty": 0.4}, LONG, 0.5),
    Ingredient("interleave", Style.COT, {"steps": 0.37, "slip": 0.1, "hasty": 0.53}, weight=0.4),
    Ingredient("interleave", Style.DIRECT, {"direct": 0.5, "hasty": 0.5}, {"length": (2, 3)}, 0.4),
)


def _products(modes: dict[str, float], digits: int, weight: float) -> Ingredient:
    return Ingredient("multiplication", Style.COT, modes, {"right_digits": digits}, weight)


LEARNING = (
    _products({"steps": 0.75, "slip": 0.05, "hasty": 0.2}, 2, 3.0),
    _products({"steps": 0.9, "hasty": 0.1}, 1, 0.7),
    *BESIDE,
)
IN_THE_END = (_products({"steps": 0.5, "direct": 0.05, "hasty": 0.45}, 2, 3.0), *BESIDE)

CONTROL = Recipe(
    name="positive-control",
    phases=(Phase(LEARNING, 3000, 3e-3), Phase(IN_THE_END, 400, 1.5e-3)),
    start="pocket",
)
