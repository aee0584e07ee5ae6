"""What a study can show: the smallest effect that its test finds in 80 % of studies.

By Student's t (with few seeds by simulated sign flips), at the level that Holm's correction leaves in the worst
case: 0.05 divided by the number of questions. Effects are in units of the standard deviation of the
paired difference, over seeds or over bases.
"""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt

import numpy as np
import scipy

from glasshouse.measurement.intervals import ALPHA
from glasshouse.study.spec import MIN_RANDOM_BASES, START, Study
from glasshouse.terminal import count_noun

POWER = 0.8
RATES = (0.1, 0.5)
"""The shares before, for which a descriptive study says what it can find."""
MAX_SIMULATED = 10
"""With more seeds the power of the sign-flip test is that of the t test."""


def describe_power(study: Study) -> str:
    """What the study can show, in words: printed before it starts, and frozen with it."""
    if not study.questions:
        problems = study.run_config(*next(study.arm_seed_pairs())).evaluate.problems
        rises = " or ".join(f"{_show(smallest_rise(r, problems))} from {r:g}" for r in RATES)
        return (
            "No questions: the study describes its runs and has no verdict. Smallest rise of a share within a run at "
            f"80 % power: {rises} ({count_noun(problems, 'problem')}; smaller if the samples of a problem differ)."
        )
    bases = {study.base_of(seed) for seed in study.seeds}
    over_bases = len(bases) >= MIN_RANDOM_BASES
    unit, n = ("base", len(bases)) if over_bases else ("seed", len(study.seeds))
    smallest = smallest_effect(n, ALPHA / len(study.questions), over_bases)
    effects: dict[str, float | None] = {}
    for question in study.questions:
        if question.margin is not None:
            effects["`unchanged` within a margin"] = smallest_margin(n)
        elif study.reference_of(question) == START and study.null_arm_of(question):
            # the null arm varies as much: a difference from it has twice the variance
            beyond = None if smallest is None else sqrt(2) * smallest
            effects["a change from the start beyond the null arm's"] = beyond
        else:
            effects["a difference"] = smallest
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


def smallest_effect(num_units: int, level: float, over_bases: bool) -> float | None:
    """The effect, in standard deviations of the difference, that a test at this level finds with a power
    of 80 %; None if it cannot find any: the smallest p of n sign flips is 2/2ⁿ.

    Example: `smallest_effect(8, 0.05, over_bases=False)` is about 1.2.
    """
    if num_units < 2 or (not over_bases and 2 / 2**num_units > level):
        return None
    if not over_bases and num_units <= MAX_SIMULATED:
        return _simulate_sign_flips(num_units, level)
    freedom = num_units - 1
    t = scipy.special.stdtrit(freedom, 1 - level / 2) + scipy.special.stdtrit(freedom, POWER)
    return float(t / sqrt(num_units))


def _simulate_sign_flips(num_units: int, level: float) -> float:
    """The p of few sign flips has few values, so the power of the test is below that of t."""
    noise = np.random.default_rng(0).standard_normal((1000, num_units))
    signs = 1 - 2 * ((np.arange(2**num_units)[:, None] >> np.arange(num_units)) & 1)

    def power(effect: float) -> float:
        differences = effect + noise
        observed = np.abs(differences.sum(axis=1))
        as_extreme = np.abs(signs @ differences.T) >= observed - 1e-9
        return float((as_extreme.mean(axis=0) <= level).mean())

    effects = np.arange(0, 20, 0.02).tolist()
    return effects[bisect_left(effects, POWER, key=power)]


def _show(rise: float | None) -> str:
    return "none" if rise is None else f"{rise:.2f}"


def smallest_rise(rate: float, n: int) -> float | None:
    """The rise of a share between two evaluations of n rollouts that a test of two proportions finds with a power of
    80 %; None if n is too small for any.

    Example: `smallest_rise(0.1, 60)` is about 0.2.
    """
    z = float(scipy.special.ndtri(1 - ALPHA / 2) + scipy.special.ndtri(POWER))
    rises = np.linspace(0, 1 - rate, 1001)
    after = rate + rises
    variances = rate * (1 - rate) + after * (1 - after)
    found = rises[rises * np.sqrt(n) >= z * np.sqrt(variances)]
    return float(found[0]) if found.size else None


def smallest_margin(num_units: int) -> float | None:
    """The margin that contains Student's 95 % interval in 80 % of studies without any effect."""
    if num_units < 2:
        return None
    freedom = num_units - 1
    t = scipy.special.stdtrit(freedom, 1 - ALPHA / 2) + scipy.special.stdtrit(
        freedom, (1 + POWER) / 2
    )
    return float(t / sqrt(num_units))
