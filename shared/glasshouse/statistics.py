"""Intervals and tests for rates and means: a measurement carries its uncertainty.

Everything is exact or a closed form. What resamples is in `monitor/inference/`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""97.5 % point of the normal distribution."""
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % points of Student's t for 1, 2, … 30 degrees of freedom."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a rate. Example: `wilson(90, 100)` is about (0.826, 0.945)."""
    if trials == 0:
        return 0.0, 1.0
    rate, z2 = successes / trials, Z95**2
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    low = centre - half if successes else 0.0  # exactly, where rounding would leave 1e-17
    return low, centre + half if successes < trials else 1.0


def t95(freedom: int) -> float:
    """97.5 % point of Student's t: the table, then its expansion in 1/freedom (error below 1e-4)."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95
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
    half = t95(n - 1) * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def pass_at_k(right: int, samples: int, k: int) -> float:
    """Unbiased chance that at least one of `k` samples is right, from `right` of `samples`."""
    if samples - right < k:
        return 1.0
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def newcombe(
    successes: int, trials: int, other_successes: int, other_trials: int
) -> tuple[float, float]:
    """95 % interval of the difference of two independent rates, from their Wilson intervals.

    Example: `newcombe(56, 70, 48, 80)` is about (0.052, 0.334), Newcombe's own example.
    """
    if not trials or not other_trials:
        return -1.0, 1.0
    p, (low, high) = successes / trials, wilson(successes, trials)
    o, (other_low, other_high) = (
        other_successes / other_trials,
        wilson(other_successes, other_trials),
    )
    return (
        p - o - math.hypot(p - low, other_high - o),
        p - o + math.hypot(high - p, o - other_low),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: below α each, the family's error is below α.

    Example: `holm([0.01, 0.04, 0.03])` is `[0.03, 0.06, 0.06]`.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - rank) * p_values[at]))
        adjusted[at] = worst
    return adjusted


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value that two monitors on the same rollouts are right equally often.

    `only_first`: how many only the first one got right. The rollouts on which both are right or
    both wrong say nothing. Example: `mcnemar(1, 8)` is 20/512 = 0.039.
    """
    n, few = only_first + only_second, min(only_first, only_second)
    term = total = 1
    for k in range(few):  # binomial coefficients one after the other: exact integers
        term = term * (n - k) // (k + 1)
        total += term
    return min(1.0, 2 * total / 2**n)


def cochran_armitage(
    successes: Sequence[int], trials: Sequence[int], doses: Sequence[float]
) -> tuple[float, float] | None:
    """Trend of a rate over ordered groups (checkpoints, say): z and its two-sided p-value.

    None where there is no trend to test: one dose only, or no success, or nothing but success.
    Rows count as independent; over seeds, test the seeds' slopes instead.
    """
    n = sum(trials)
    if not n:
        return None
    rate = sum(successes) / n
    centre = math.fsum(t * d for t, d in zip(trials, doses, strict=True)) / n
    spread = math.fsum(t * (d - centre) ** 2 for t, d in zip(trials, doses, strict=True))
    variance = rate * (1 - rate) * spread
    if variance <= 0:
        return None
    z = math.fsum(s * (d - centre) for s, d in zip(successes, doses, strict=True)) / math.sqrt(
        variance
    )
    return z, math.erfc(abs(z) / math.sqrt(2))
