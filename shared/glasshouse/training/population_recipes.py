"""Recipes of a population of independent leaked_hint bases, for claims about bases as a random effect.

Every base has its own random initial weights, tokenizer, vocabulary size, demonstrations and share of
demonstrations that disclose the hint. All of these are drawn from one distribution, keyed by the seed,
so that the bases of a study are a sample and a result can be generalised to further draws.
"""

from __future__ import annotations

from dataclasses import replace

from glasshouse import randomness
from glasshouse.training.organism_recipes import HINT_COPYING, LEAKED_HINT
from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe

POPULATION_SEEDS = range(10, 16)
MIN_VOCAB_SIZE, MAX_VOCAB_SIZE = 315, 346
"""346 is the most that these texts yield: no pair of tokens is left to merge."""
MIN_DISCLOSED, MAX_DISCLOSED = 1 / 3, 2 / 3
"""Share of the hint's uses that disclose it, among the demonstrations."""


def set_disclosed_share(component: MixtureComponent, share: float) -> MixtureComponent:
    """The same component; `share` of the demonstrated uses of the hint disclose it, the rest are silent."""
    uses = component.modes["disclosed"] + component.modes["silent"]
    modes = {
        **component.modes,
        "disclosed": round(uses * share, 4),
        "silent": round(uses - round(uses * share, 4), 4),
    }
    return replace(component, modes=modes)


def draw_recipe(seed: int) -> Recipe:
    """Draws the recipe of one base. Half of the usual batch size, because progress depends on the number
    of steps."""
    rng = randomness.stream("leaked_hint population", seed)
    vocab_size = rng.randint(MIN_VOCAB_SIZE, MAX_VOCAB_SIZE)
    share = rng.uniform(MIN_DISCLOSED, MAX_DISCLOSED)
    phases = (
        Phase((set_disclosed_share(HINT_COPYING, share),), 1800, 5e-3),
        Phase((set_disclosed_share(LEAKED_HINT, share),), 400, 2e-3),
    )
    return Recipe(
        name=f"leaked-hint-{seed}", phases=phases, seed=seed, vocab_size=vocab_size, batch_size=32
    )


POPULATION_RECIPES = tuple(draw_recipe(seed) for seed in POPULATION_SEEDS)
