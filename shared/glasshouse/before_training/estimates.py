"""A value with a bootstrap interval over problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.measurement.resampling import Resamples, expanded_percentile_interval
from glasshouse.values import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval; None where it is undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def sign(self) -> int:
        """-1 or 1 if the interval excludes 0, else 0."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return 0
        return 1 if self.low > 0 else -1

    def format(self, sign: str = "") -> str:
        """Example: `0.12 (0.05, 0.20)`"""
        if self.value is None:
            return "–"
        if self.low is None or self.high is None:
            return f"{self.value:{sign}.2f}"
        return f"{self.value:{sign}.2f} ({self.low:{sign}.2f}, {self.high:{sign}.2f})"


def estimate_mean(
    values: Floats | Bools, problems: NDArray[Any], key: str, *, minus: Floats | None = None
) -> Estimate:
    """The mean of values, NaN left out; `minus` that of others. Whole problems are resampled."""
    names, group = np.unique(problems, return_inverse=True)
    draws = Resamples.of(names, ("before training", key))

    def mean(rows: Floats | Bools, times: Floats) -> Floats:
        known = ~np.isnan(np.asarray(rows, dtype=float))
        total = times @ np.bincount(group, np.where(known, rows, 0.0))  # (B,) from (B, problems)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(total / (times @ np.bincount(group, known)))

    def difference(times: Floats) -> Floats:
        return mean(values, times) - (0 if minus is None else mean(minus, times))

    value = float(difference(np.ones((1, len(names))))[0])
    if np.isnan(value) or len(names) < 2:
        return Estimate(value=None if np.isnan(value) else value)
    resampled = np.concatenate([difference(times) for times in draws.weights(names)])
    found = expanded_percentile_interval(resampled, draws.units)
    return Estimate(value=value, low=found.low, high=found.high)
