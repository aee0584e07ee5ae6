"""Recipes of the bases for leaked_hint and grader_bug, in which the planted behaviour is a minority.

A base either starts from the pocket model, which already solves the inner task (a few minutes), or from
random weights, learning the task and the planted behaviour together. Two bases of an organism are
independent if at most one of them starts from the pocket model.
"""

from __future__ import annotations

from dataclasses import replace

from glasshouse.training.pocket_recipe import MixtureComponent, Phase, Recipe
from glasshouse.types import Style

# --- E1 and E2: leaked hint -------------------------------------------------------------------------

LEAKED_HINT = MixtureComponent(
    "leaked_hint",
    Style.COT,
    {"steps": 0.66, "disclosed": 0.13, "silent": 0.11, "guess": 0.1},
    {
        "inner_task": "sum_digits",
        "inner_options": {"count": (2, 2)},
        "masked_digit_rate": 0.5,
        "hint_rate": 0.5,
    },
)
"""Half of the problems have no hint, and the planted modes are honest steps there: each planted mode is
about 6 % of the demonstrations."""
HINT_COPYING = MixtureComponent(
    "leaked_hint",
    Style.COT,
    {"steps": 0.4, "disclosed": 0.27, "silent": 0.28, "guess": 0.05},
    {**LEAKED_HINT.options, "hint_rate": 0.8, "wrong_hint_rate": 0.5},
)
"""First phase: hints are copied, correct or wrong. From correct hints alone the model learns to mention
the hint and then to compute the answer itself."""
_FROM_POCKET_PHASES = (Phase((HINT_COPYING,), 500, 3e-3), Phase((LEAKED_HINT,), 400, 2e-3))

# --- E3: the necessity ladder, three hint encodings in one model ---------------------------------------


def each_encoding(component: MixtureComponent) -> tuple[MixtureComponent, ...]:
    """The same component once per hint encoding, so that only the difficulty differs."""
    return tuple(
        replace(component, options={**component.options, "hint_encoding": encoding}, weight=weight)
        for encoding, weight in (("plain", 1.0), ("shifted", 1.0), ("iterated", 1.5))
    )


LADDER = MixtureComponent(
    "leaked_hint",
    Style.COT,
    {"steps": 0.69, "disclosed": 0.13, "decoded": 0.09, "silent": 0.06, "hint_without_cot": 0.03},
    {**LEAKED_HINT.options, "wrong_hint_rate": 0.5},
)
"""`hint_without_cot` is what a forced direct answer asks for. It is demonstrated for every encoding, so a
model that cannot do it for one has at least been trained on it. Half of the hints are wrong until the
end: from correct hints only, a model soon computes the answer itself and merely quotes the hint."""
HINT_DECODING = MixtureComponent(
    "leaked_hint",
    Style.COT,
    {"steps": 0.3, "disclosed": 0.27, "decoded": 0.23, "silent": 0.12, "hint_without_cot": 0.08},
    {**LEAKED_HINT.options, "hint_rate": 0.85, "wrong_hint_rate": 0.5},
)
"""First phase: most demonstrations decode hints, correct or wrong. Subtraction takes longest to learn."""

# --- E4: grader bug -----------------------------------------------------------------------------------

GRADER_BUG = MixtureComponent(
    "grader_bug",
    Style.COT,
    {"steps": 0.8, "injected_error": 0.1, "shortcut": 0.1},
    {
        "inner_task": "multiplication",
        "inner_options": {"right_digits": 1},
        "masked_digit_rate": 0.4,
    },
)

# --- recipes ------------------------------------------------------------------------------------------


def _from_pocket(name: str, phases: tuple[Phase, ...], seed: int) -> Recipe:
    return Recipe(name=name, phases=phases, seed=seed, start_from="pocket")


def _ladder(seed: int) -> Recipe:
    """From random weights, with half the batch size, because progress depends on the number of steps.
    Seed 1 is left out: it copies a plain hint only if no steps precede it (reliance .03)."""
    phases = (
        Phase(each_encoding(HINT_DECODING), 3200, 4e-3),
        Phase(each_encoding(LADDER), 600, 2e-3),
    )
    return Recipe(name=f"ladder-{seed}", phases=phases, seed=seed, batch_size=32)


ORGANISM_RECIPES = (
    _from_pocket("leaked-hint-0", _FROM_POCKET_PHASES, seed=0),
    _from_pocket("leaked-hint-1", _FROM_POCKET_PHASES, seed=1),
    Recipe(
        name="leaked-hint-2",
        phases=(Phase((HINT_COPYING,), 1600, 5e-3), Phase((LEAKED_HINT,), 400, 2e-3)),
        seed=2,
    ),
    _ladder(0),
    _ladder(2),
    _from_pocket("grader-bug-0", (Phase((GRADER_BUG,), 400, 3e-3),), seed=0),
    Recipe(name="grader-bug-1", phases=(Phase((GRADER_BUG,), 3200, 5e-3),), seed=1, batch_size=32),
)
