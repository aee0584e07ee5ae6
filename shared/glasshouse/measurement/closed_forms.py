"""Closed-form intervals and tests for rates and means.

They are written out because scipy's and statsmodels' intervals differ in the last bit, and their t quantile in the
fourth digit, so that published intervals would change. The tests compare all of them with both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Z_975 = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
_T_QUANTILES = """
12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 2.131
2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 2.045 2.042
"""
T_TABLE_975 = [float(quantile) for quantile in _T_QUANTILES.split()]
"""97.5 % quantiles of Student's t for 1, 2, … 30 degrees of freedom."""


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """95 % interval of a rate. Example: `wilson_interval(90, 100)` is about (0.826, 0.945)."""
    if trials == 0:
        return 0.0, 1.0
    rate, z2 = successes / trials, Z_975**2
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_975 * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    low = centre - half if successes else 0.0  # exactly, where rounding would leave 1e-17
    return low, centre + half if successes < trials else 1.0


def clustered_rate_interval(shares: Sequence[float], samples: int) -> tuple[float, float]:
    """95 % interval of a rate over problems, from each problem's share of correct samples: Wilson's, with the number
    of independent samples that has the variance seen between problems. That is as many as problems if the samples of a
    problem agree. Example: `clustered_rate_interval([0.0, 1.0] * 50, 4)` is that of 50 of 100.
    """
    problems = len(shares)
    if not problems:
        return 0.0, 1.0
    rate = math.fsum(shares) / problems
    effective = float(problems)
    if problems > 1 and 0 < rate < 1:
        variance = math.fsum((share - rate) ** 2 for share in shares) / (problems - 1)
        if variance > 0:
            effective = rate * (1 - rate) * problems / variance
        effective = min(max(effective, problems), problems * samples)
    return wilson_interval(rate * effective, effective)


def t_quantile_975(freedom: int) -> float:
    """97.5 % quantile of Student's t: the table, then an expansion in 1/freedom (error below 1e-4)."""
    if freedom <= len(T_TABLE_975):
        return T_TABLE_975[freedom - 1]
    z = Z_975
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval over seeds. One value alone has no interval: infinite ends."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, -math.inf, math.inf
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile_975(n - 1) * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased chance that at least one of `k` samples is correct, from `correct` of `samples`."""
    if samples - correct < k:
        return 1.0
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def newcombe_interval(
    successes: int, trials: int, other_successes: int, other_trials: int
) -> tuple[float, float]:
    """95 % interval of the difference of two independent rates, from their Wilson intervals.
    Example: `newcombe_interval(56, 70, 48, 80)` is about (0.052, 0.334), Newcombe's own example."""
    if not trials or not other_trials:
        return -1.0, 1.0
    return difference_interval(
        (successes / trials, *wilson_interval(successes, trials)),
        (other_successes / other_trials, *wilson_interval(other_successes, other_trials)),
    )


def difference_interval(
    estimate: tuple[float, float, float], other: tuple[float, float, float]
) -> tuple[float, float]:
    """95 % interval of the difference of two independent estimates, each given as (value, low, high)."""
    (p, low, high), (o, other_low, other_high) = estimate, other
    return (
        p - o - math.hypot(p - low, other_high - o),
        p - o + math.hypot(high - p, o - other_low),
    )


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: rejecting those of at most α keeps the family-wise error
    rate at α. Example: `holm_adjust([0.01, 0.04, 0.03])` is `[0.03, 0.06, 0.06]`."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
