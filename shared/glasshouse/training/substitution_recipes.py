"""Recipes of the substitution organism's bases, trained from random weights: two seeds, two models."""

from __future__ import annotations

from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe
from glasshouse.types import Style

OPTIONS = {"inner_options": {"moves": (4, 6), "furthest": 5}}
"""Short moves: half as many sums to learn."""

WALKING = MixtureComponent(
    "substitution",
    Style.COT,
    {"steps": 0.85, "substituted": 0.05, "decorative": 0.05, "guess": 0.05},
    OPTIONS,
)
"""First phase: how to walk, nearly always in one vocabulary."""
TRACKING = MixtureComponent(
    "substitution",
    Style.COT,
    {"steps": 0.42, "substituted": 0.42, "decorative": 0.08, "guess": 0.08},
    OPTIONS,
)
"""Second phase: both vocabularies equally. From a small share alone the model learns to write synonyms
but not to track the state with them; both vocabularies from the start took more than twice as long."""
FINAL = MixtureComponent(
    "substitution",
    Style.COT,
    {"steps": 0.61, "substituted": 0.04, "decorative": 0.05, "guess": 0.3},
    OPTIONS,
)
"""Last phase: synonyms and meaningless words are rare."""

SUBSTITUTION_RECIPES = tuple(
    Recipe(
        name=f"substitution-{seed}",
        phases=(
            Phase((WALKING,), 600, 5e-3),
            Phase((TRACKING,), 600, 4e-3),
            Phase((FINAL,), 300, 2e-3),
        ),
        batch_size=32,
        seed=seed,
    )
    for seed in (0, 1)
)
