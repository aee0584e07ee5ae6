"""All recipes by name, and the pocket model's recipe: every task and style in several modes.

RL amplifies what a model already does sometimes. So correct behaviour is in the mixture but does not
dominate it: about a third of the demonstrations are correct, and most others are typical wrong answers.

Where a quarter of a million parameters cannot learn a task's full range, the options are easier. They
are written to the model card, and a run that sets no `task.options` uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glasshouse.training.organism_recipes import ORGANISM_RECIPES
from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe
from glasshouse.training.population_recipes import POPULATION_RECIPES
from glasshouse.training.positive_control import POSITIVE_CONTROL
from glasshouse.training.product_recipe import PRODUCTS
from glasshouse.training.substitution_recipes import SUBSTITUTION_RECIPES
from glasshouse.types import Style


def _with_direct(steps: float, direct: float = 0.1) -> dict[str, float]:
    """Shares of correct steps and correct direct answers; the rest are guesses."""
    return {"steps": steps, "direct": direct, "guess": round(1 - steps - direct, 6)}


def _with_errors(steps: float, error: float = 0.1) -> dict[str, float]:
    """Shares of correct steps and steps with an injected error; the rest are guesses."""
    return {"steps": steps, "injected_error": error, "guess": round(1 - steps - error, 6)}


def _direct_only(direct: float) -> dict[str, float]:
    """Share of correct direct answers; the rest are guesses."""
    return {"direct": direct, "guess": round(1 - direct, 6)}


COT, DIRECT = Style.COT, Style.DIRECT

FIRST_MIXTURE = (
    MixtureComponent("sum_digits", COT, _with_direct(0.36), weight=2.0),
    MixtureComponent("reverse_digits", COT, _with_errors(0.37), weight=0.8),
    MixtureComponent("arithmetic", COT, _with_direct(0.38), weight=2.0),
    MixtureComponent("multiplication", COT, _with_direct(0.38), {"right_digits": 1}, weight=1.5),
    MixtureComponent("interleave", COT, _with_errors(0.37), weight=1.0),
    MixtureComponent("sum_digits", DIRECT, _direct_only(0.5), {"count": (2, 2), "high": 99}, 0.8),
    MixtureComponent("reverse_digits", DIRECT, _direct_only(0.45), {"low": 100, "high": 9999}, 0.6),
    MixtureComponent(
        "arithmetic", DIRECT, _direct_only(0.55), {"steps": (1, 1), "operand_high": 99}, 1.0
    ),
    MixtureComponent(
        "multiplication", DIRECT, _direct_only(0.6), {"left_digits": 2, "right_digits": 1}
    ),
    MixtureComponent("interleave", DIRECT, _direct_only(0.5), {"length": (2, 4)}, 0.8),
)

HARD_MIXTURE = (
    MixtureComponent("sum_digits", COT, _with_direct(0.38), weight=2.5),
    MixtureComponent("reverse_digits", COT, _with_errors(0.42), weight=1.2),
    MixtureComponent("arithmetic", COT, _with_direct(0.40), weight=2.2),
    MixtureComponent("multiplication", COT, _with_direct(0.42), {"right_digits": 1}, weight=2.2),
    MixtureComponent("interleave", COT, _with_errors(0.37), weight=0.9),
    MixtureComponent("sum_digits", DIRECT, _direct_only(0.5), {"count": (2, 2), "high": 99}, 0.6),
    MixtureComponent("reverse_digits", DIRECT, _direct_only(0.55), {"low": 100, "high": 9999}, 0.8),
    MixtureComponent(
        "arithmetic", DIRECT, _direct_only(0.7), {"steps": (1, 1), "operand_high": 99}, 1.4
    ),
    MixtureComponent(
        "multiplication", DIRECT, _direct_only(0.5), {"left_digits": 2, "right_digits": 1}, 0.6
    ),
    MixtureComponent("interleave", DIRECT, _direct_only(0.55), {"length": (2, 3)}, 1.3),
)
"""More weight on what is learned slowly."""

FINAL_MIXTURE = tuple(
    replace(c, modes=_direct_only(0.45))
    if (c.task_name, c.style) == ("reverse_digits", DIRECT)
    else c
    for c in HARD_MIXTURE
)
"""By now the model reverses digits without steps; more guesses leave room for RL."""

POCKET = Recipe(
    name="pocket",
    phases=(
        Phase(FIRST_MIXTURE, 9_000, 5e-3),
        Phase(HARD_MIXTURE, 7_000, 3.5e-3),
        Phase(FINAL_MIXTURE, 500, 1e-3),
    ),
)

MOCK = Recipe(
    name="mock",
    phases=(Phase(HARD_MIXTURE, 300, 5e-3),),
    hidden_size=32,
    num_layers=1,
    intermediate_size=64,
    batch_size=32,
)
"""A minimal model for tests: it knows the answer format and little else."""

RECIPES: Mapping[str, Recipe] = {
    r.name: r
    for r in (
        POCKET,
        MOCK,
        POSITIVE_CONTROL,
        PRODUCTS,
        *ORGANISM_RECIPES,
        *POPULATION_RECIPES,
        *SUBSTITUTION_RECIPES,
    )
}
