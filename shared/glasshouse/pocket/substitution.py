"""The bases of the substitution organism: built from nothing, so that two seeds are two models."""

from __future__ import annotations

from glasshouse.pocket.recipe import Ingredient, Phase, Recipe
from glasshouse.types import Style

RANGE = {"inner": {"moves": (4, 6)}}

TRACKING = Ingredient(
    "substitution",
    Style.COT,
    {"steps": 0.42, "substituted": 0.42, "decorative": 0.08, "hasty": 0.08},
    RANGE,
)
"""Shown first: both vocabularies alike. From a few percent alone the model learns to write synonyms
and not to follow them."""
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
        phases=(Phase((TRACKING,), 2000, 5e-3), Phase((MIX,), 400, 2e-3)),
        seed=seed,
    )
    for seed in (0, 1)
)
