"""Comparisons over bases: seeds are nested in bases, and bases are a random effect.

Seeds of one base share its weights, so their differences are alike. With several bases the question
is about bases that were not trained: the unit is the base. The estimate is the mean of the bases'
mean differences, with Student's t over the bases. With as many seeds in every base this equals a
mixed model with a random effect of the base on the arm's effect (REML, Kenward–Roger). With unequal
numbers it stays close: `python -m proofs.base_intervals` simulates its coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from glasshouse.measurement.closed_forms import mean_interval
from glasshouse.measurement.paired_seeds import PairedComparison, compare_differences


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseInteraction:
    """Does the arm's effect differ between bases by more than between seeds of one base?"""

    f: float | None
    """One-way analysis of variance of the differences, by base."""
    df_between: int
    df_within: int
    p: float | None
    sd_between: float | None
    """Standard deviation of the effect between bases, without the noise of seeds; at least 0."""
    sd_within: float | None
    """Standard deviation of the difference between seeds of one base."""
    reason: str = ""
    """Why there is no test; empty if there is one."""


def compare_over_bases(
    differences: Sequence[float], bases: Sequence[str], dropped: int = 0
) -> PairedComparison:
    """The comparison whose interval and test hold for bases like these. `bases[i]` is the base of
    `differences[i]`.

    Example: `compare_over_bases([1, 3, 2, 4, 3, 5], ["a", "a", "b", "b", "c", "c"])` has the effect 3
    and the interval of the three means 2, 3 and 4.
    """
    means = [math.fsum(group) / len(group) for group in _group(differences, bases)]
    if len(means) < 2:
        return compare_differences(differences, dropped)
    effect, low, high = mean_interval(means)
    deviation = float(np.std(means, ddof=1))
    return PairedComparison(
        effect=effect,
        low=low,
        high=high,
        p=t_test(means),
        smallest_p=None,
        d=effect / deviation if deviation > 0 else None,
        n=len(differences),
        num_bases=len(means),
        dropped=dropped,
    )


def t_test(values: Sequence[float]) -> float:
    """Two-sided p of Student's test that the mean is 0.

    Example: `t_test([1, 2, 3])` is 0.0742: t = 3.46 with 2 degrees of freedom.
    """
    n, mean = len(values), math.fsum(values) / len(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * special.stdtr(n - 1, -abs(mean / error)))


def estimate_interaction(differences: Sequence[float], bases: Sequence[str]) -> BaseInteraction:
    """Test the base × arm interaction: since arms are paired within seeds, it is the variation of
    the differences between bases.

    Example: `estimate_interaction([1, 3, 2, 4, 7, 9], ["a", "a", "b", "b", "c", "c"]).f` is 10.33.
    """
    groups = _group(differences, bases)
    n, k = len(differences), len(groups)
    df_between, df_within = max(0, k - 1), n - k
    if k < 2 or df_within < 1:
        reason = "one base" if k < 2 else "one seed per base"
        return BaseInteraction(
            f=None, df_between=df_between, df_within=max(0, df_within), p=None,
            sd_between=None, sd_within=None, reason=reason,
        )  # fmt: skip
    grand = math.fsum(differences) / n
    means = [math.fsum(group) / len(group) for group in groups]
    between = math.fsum(len(g) * (m - grand) ** 2 for g, m in zip(groups, means, strict=True))
    within = math.fsum((v - m) ** 2 for g, m in zip(groups, means, strict=True) for v in g)
    mean_square, noise = between / df_between, within / df_within
    seeds_per_base = (n - math.fsum(len(g) ** 2 for g in groups) / n) / df_between
    f = mean_square / noise if noise > 0 else None
    return BaseInteraction(
        f=f,
        df_between=df_between,
        df_within=df_within,
        p=None if f is None else float(special.fdtrc(df_between, df_within, f)),
        sd_between=math.sqrt(max(0.0, mean_square - noise) / seeds_per_base),
        sd_within=math.sqrt(noise),
        reason="" if f is not None else "seeds of one base do not differ",
    )


def _group(differences: Sequence[float], bases: Sequence[str]) -> list[list[float]]:
    """The differences of each base, in the order of the bases."""
    groups: dict[str, list[float]] = {}
    for value, base in zip(differences, bases, strict=True):
        groups.setdefault(base, []).append(value)
    return [groups[base] for base in sorted(groups)]
