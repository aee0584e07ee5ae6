"""The recipe of the positive control's base: the pocket model, trained on 3-digit by 2-digit products.

The pocket model never saw long multiplication. It learns it from mostly correct steps; the last phase
makes correct steps rarer, so that RL has room to improve. Arithmetic and interleaving stay in the
mixture, so one base serves the positive control and the interleave experiment.
"""

from __future__ import annotations

from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe
from glasshouse.types import Style

OTHER_TASKS = (
    MixtureComponent("arithmetic", Style.COT, {"steps": 0.4, "direct": 0.1, "guess": 0.5}),
    MixtureComponent(
        "arithmetic",
        Style.DIRECT,
        {"direct": 0.65, "guess": 0.35},
        {"steps": (1, 1), "operand_high": 99},
        0.7,
    ),
    MixtureComponent(
        "multiplication", Style.DIRECT, {"direct": 0.6, "guess": 0.4}, {"right_digits": 2}, 0.5
    ),
    MixtureComponent(
        "interleave", Style.COT, {"steps": 0.37, "injected_error": 0.1, "guess": 0.53}, weight=0.4
    ),
    MixtureComponent(
        "interleave", Style.DIRECT, {"direct": 0.5, "guess": 0.5}, {"length": (2, 3)}, 0.4
    ),
)


def _multiplication(modes: dict[str, float], right_digits: int, weight: float) -> MixtureComponent:
    return MixtureComponent(
        "multiplication", Style.COT, modes, {"right_digits": right_digits}, weight
    )


MOSTLY_CORRECT = (
    _multiplication({"steps": 0.75, "injected_error": 0.05, "guess": 0.2}, 2, 3.0),
    _multiplication({"steps": 0.9, "guess": 0.1}, 1, 0.7),
    *OTHER_TASKS,
)
FINAL_MIXTURE = (
    _multiplication({"steps": 0.5, "direct": 0.05, "guess": 0.45}, 2, 3.0),
    *OTHER_TASKS,
)

POSITIVE_CONTROL = Recipe(
    name="positive-control",
    phases=(Phase(MOSTLY_CORRECT, 3000, 3e-3), Phase(FINAL_MIXTURE, 400, 1.5e-3)),
    start_from="pocket",
)
