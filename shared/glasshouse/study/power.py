"""What a study can show: the smallest effect that its own test finds in 80 % of studies.

Simulated for the test that is run: the exact sign-flip test over seeds, or Student's t test over
bases, at the level that Holm's correction leaves for the first of the study's questions (0.05 divided by
their number: the worst case, in which no other question has an effect). Effects are in units of the
standard deviation of the paired difference, over seeds or over bases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy import special

from glasshouse.measurement.seeds import ALPHA
from glasshouse.study.spec import MIN_RANDOM_BASES, START, Study

POWER = 0.8
SIMULATIONS = 1000
MAX_FLIPS = 2**12
"""Above 12 pairs a sample of sign flips stands for all of them."""
LARGEST_EFFECT = 20.0
"""In standard deviations; an effect that needs more counts as impossible to show."""
EXAMPLE_DEVIATION = 0.1

Rejects = Callable[[Any], Any]


def describe_power(study: Study) -> str:
    """What the study can show, in words: printed before it starts. Empty without questions."""
    if not study.questions:
        return ""
    bases = {study.base_of(seed) for seed in study.seeds}
    over_bases = len(bases) >= MIN_RANDOM_BASES
    unit, num_units = ("bases", len(bases)) if over_bases else ("seeds", len(study.seeds))
    num_tests = len(study.questions)
    level = ALPHA / num_tests
    directed = [q for q in study.questions if q.margin is None]
    from_start = [q for q in directed if study.reference_of(q) == START and study.null_arm_of(q)]
    parts = []
    if len(directed) > len(from_start):
        effect = smallest_effect(num_units, level, over_bases)
        parts.append(_describe("a difference", effect, unit))
    if from_start:
        effect = smallest_effect(num_units, level, over_bases, must_exceed_null=True)
        parts.append(_describe("a change from the start beyond the null arm's", effect, unit))
    if len(directed) < num_tests:
        parts.append(_describe("`unchanged` within a margin", smallest_margin(num_units), unit))
    test = "t test over base means" if over_bases else "sign-flip test over seeds"
    questions = f"{num_tests} question{'s' * (num_tests != 1)}"
    units = f"{num_units} {unit if num_units != 1 else unit.removesuffix('s')}"
    return (
        f"Smallest effect at 80 % power ({test}, {units}, Holm over {questions}): "
        f"{'; '.join(parts)}."
    )


def _describe(name: str, effect: float | None, unit: str) -> str:
    if effect is None:
        return f"{name} cannot be shown with so few {unit}"
    return (
        f"{name} of {effect:.2g} standard deviations between {unit} "
        f"({EXAMPLE_DEVIATION * effect:.2g} if they vary by {EXAMPLE_DEVIATION:g})"
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
    rejects = _t_test_rejects(level) if over_bases else _sign_flip_rejects(num_units, level, rng)

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


@cache
def smallest_margin(num_units: int) -> float:
    """The margin that contains Student's 95 % interval in 80 % of studies without any effect."""
    noise = np.random.default_rng(1).standard_normal((20_000, max(2, num_units)))
    deviation = noise.std(axis=1, ddof=1) / np.sqrt(noise.shape[1])
    half = special.stdtrit(noise.shape[1] - 1, 0.975) * deviation
    return float(np.quantile(np.abs(noise.mean(axis=1)) + half, POWER))


def _t_test_rejects(level: float) -> Rejects:
    def rejects(differences: Any) -> Any:  # (simulations, units) -> (simulations,)
        n = differences.shape[1]
        t = differences.mean(axis=1) / (differences.std(axis=1, ddof=1) / np.sqrt(n))
        return 2 * special.stdtr(n - 1, -np.abs(t)) <= level

    return rejects


def _sign_flip_rejects(num_units: int, level: float, rng: np.random.Generator) -> Rejects:
    if 2**num_units <= MAX_FLIPS:
        bits = (np.arange(2**num_units)[:, None] >> np.arange(num_units)) & 1
    else:
        bits = rng.integers(0, 2, (MAX_FLIPS, num_units))
        bits[0] = 0  # the observed signs
    signs = 1.0 - 2.0 * bits  # (flips, units)

    def rejects(differences: Any) -> Any:
        observed = np.abs(differences.sum(axis=1))
        as_extreme = np.abs(signs @ differences.T) >= observed - 1e-9
        return as_extreme.mean(axis=0) <= level

    return rejects
