"""The bases of the substitution organism: built from nothing, so that two seeds are two models."""

from __future__ import annotations

from glasshouse.pocket.recipe import Ingredient, Phase, Recipe
from glasshouse.types import Style

RANGE = {"inner": {"moves": (4, 6), "furthest": 5}}
"""Short moves: a ring with half as many sums to learn."""

WALKING = Ingredient(
    "substitution",
    Style.COT,
    {"steps": 0.85, "substituted": 0.05, "decorative": 0.05, "hasty": 0.05},
    RANGE,
)
"""Shown first: how to walk, nearly always in one vocabulary."""
TRACKING = Ingredient(
    "substitution",
    Style.COT,
    {"steps": 0.42, "substituted": 0.42, "decorative": 0.08, "hasty": 0.08},
    RANGE,
)
"""Shown then: both vocabularies alike. From a few percent alone the model learns to write synonyms
and not to follow them; both from the beginning took more than twice as long."""
MIX = Ingredient(
    "substitution",
    Style.COT,
    {"steps": 0.61, "substituted": 0.04, "decorative": 0.05, "hasty": 0.3},
    RANGE,
)
"""Shown in the end: synonyms are rare, and so are words that mean nothing."""

SUBSTITUTION = tuple(
    Recipe(
        name=f"substitution-{seed}",
        phases=(
            Phase((WALKING,), 600, 5e-3),
            Phase((TRACKING,), 600, 4e-3),
            Phase((MIX,), 300, 2e-3),
        ),
        batch=32,
        seed=seed,
    )
    for seed in (0, 1)
)
