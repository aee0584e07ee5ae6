"""The recipe of the positive control's larger base: products of three by two digits without a CoT.

The model has to compute a product without writing steps. It first sees only correct answers, starting with
shorter products. The last phase adds wrong answers (the product with the last digit of the right factor only),
so that RL has room to improve.
"""

from __future__ import annotations

from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe
from glasshouse.types import Style

SHORT = {(3, 1): 4.0, (2, 2): 4.0, (2, 1): 2.0}
ALL = {(3, 2): 6.0, (3, 1): 2.0, (2, 2): 1.5, (2, 1): 0.5}
"""Sampling weights of products by the numbers of digits of their factors."""


def _mixture(
    weights: dict[tuple[int, int], float], correct: float = 1.0
) -> tuple[MixtureComponent, ...]:
    """Products with a share of correct answers; the rest are guesses."""
    modes = {"direct": correct, "guess": round(1 - correct, 6)}
    return tuple(
        MixtureComponent(
            "multiplication",
            Style.DIRECT,
            modes,
            {"left_digits": left, "right_digits": right},
            weight,
        )
        for (left, right), weight in weights.items()
    )


PRODUCTS = Recipe(
    name="positive-control-products",
    phases=(
        Phase(_mixture(SHORT), 400, 3e-3),
        Phase(_mixture(ALL), 3_700, 3e-3),
        Phase(_mixture(ALL, correct=0.6), 200, 5e-4),
    ),
    hidden_size=128,
    intermediate_size=512,
    batch_size=96,
    microbatch_tokens=280,
    phrases=True,
)
