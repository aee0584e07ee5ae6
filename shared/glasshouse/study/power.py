"""What a study can show: the smallest effect that its own test finds in 80 % of studies.

Simulated for the test that is run (sign flips over seeds, or Student's t over bases) at the level that
Holm's correction leaves in the worst case: 0.05 divided by the number of questions. Effects are in units
of the standard deviation of the paired difference, over seeds or over bases.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy import special

from glasshouse.measurement.intervals import ALPHA
from glasshouse.study.spec import MIN_RANDOM_BASES, START, Study
from glasshouse.terminal import count_noun

POWER = 0.8
SIMULATIONS = 1000
MAX_FLIPS = 2**12
"""Above 12 pairs a sample of sign flips stands for all of them."""
LARGEST_EFFECT = 20.0
"""In standard deviations; an effect that needs more counts as impossible to show."""


def describe_power(study: Study) -> str:
    """What the study can show, in words: printed before it starts. Empty without questions."""
    if not study.questions:
        return ""
    bases = {study.base_of(seed) for seed in study.seeds}
    over_bases = len(bases) >= MIN_RANDOM_BASES
    unit, n = ("base", len(bases)) if over_bases else ("seed", len(study.seeds))
    level = ALPHA / len(study.questions)
    effects: dict[str, float | None] = {}
    for question in study.questions:
        if question.margin is not None:
            effects["`unchanged` within a margin"] = smallest_margin(n)
        elif study.reference_of(question) == START and study.null_arm_of(question):
            smallest = smallest_effect(n, level, over_bases, must_exceed_null=True)
            effects["a change from the start beyond the null arm's"] = smallest
        else:
            effects["a difference"] = smallest_effect(n, level, over_bases)
    parts = [
        f"{name} cannot be shown with so few {unit}s"
        if effect is None
        else f"{name} of {effect:.2g} standard deviations between {unit}s ({0.1 * effect:.2g} if they vary by 0.1)"
        for name, effect in effects.items()
    ]
    test = "t test over base means" if over_bases else "sign-flip test over seeds"
    questions = count_noun(len(study.questions), "question")
    return (
        f"Smallest effect at 80 % power ({test}, {count_noun(n, unit)}, Holm over {questions}): "
        f"{'; '.join(parts)}."
    )


@cache
def smallest_effect(
    num_units: int, level: float, over_bases: bool, must_exceed_null: bool = False
) -> float | None:
    """The effect, in standard deviations of the difference, that a test at this level finds with a power
    of 80 %; None if it cannot find any. With `must_exceed_null` it must differ from the start and from the
    null arm, which does not change and varies as much.

    Example: `smallest_effect(8, 0.05, over_bases=False)` is about 1.2.
    """
    if num_units < 2:
        return None
    rng = np.random.default_rng(0)
    noise, null_noise = rng.standard_normal((2, SIMULATIONS, num_units))
    signs = _sign_flips(num_units, rng)

    def rejects(differences: Any) -> Any:  # (simulations, units) -> (simulations,)
        if over_bases:
            deviation = differences.std(axis=1, ddof=1) / np.sqrt(num_units)
            t = differences.mean(axis=1) / deviation
            return 2 * special.stdtr(num_units - 1, -np.abs(t)) <= level
        observed = np.abs(differences.sum(axis=1))
        as_extreme = np.abs(signs @ differences.T) >= observed - 1e-9
        return as_extreme.mean(axis=0) <= level

    def power(effect: float) -> float:
        shown = rejects(effect + noise)
        if must_exceed_null:
            shown &= rejects(effect + noise - null_noise)
        return float(shown.mean())

    low, high = 0.0, LARGEST_EFFECT
    if power(high) < POWER:
        return None
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def _sign_flips(num_units: int, rng: np.random.Generator) -> Any:
    """Signs (flips, units); the first are the observed ones."""
    if 2**num_units <= MAX_FLIPS:
        bits = (np.arange(2**num_units)[:, None] >> np.arange(num_units)) & 1
    else:
        bits = rng.integers(0, 2, (MAX_FLIPS, num_units))
        bits[0] = 0
    return 1.0 - 2.0 * bits


@cache
def smallest_margin(num_units: int) -> float:
    """The margin that contains Student's 95 % interval in 80 % of studies without any effect."""
    noise = np.random.default_rng(1).standard_normal((20_000, max(2, num_units)))
    deviation = noise.std(axis=1, ddof=1) / np.sqrt(noise.shape[1])
    half = special.stdtrit(noise.shape[1] - 1, 0.975) * deviation
    return float(np.quantile(np.abs(noise.mean(axis=1)) + half, POWER))
