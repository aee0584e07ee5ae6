"""Intervals for rates and means: a measurement carries its uncertainty."""

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


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval over seeds. One value alone has no interval: infinite ends."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, -math.inf, math.inf
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    quantile = T95[n - 2] if n - 2 < len(T95) else Z95
    half = quantile * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def pass_at_k(right: int, samples: int, k: int) -> float:
    """Unbiased chance that at least one of `k` samples is right, from `right` of `samples`."""
    if samples - right < k:
        return 1.0
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)
