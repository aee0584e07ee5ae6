"""Evaluations by monitors of known quality, drawn; and whether intervals hold their rate."""

from __future__ import annotations

import math

import numpy as np

from glasshouse.measures import gmean
from glasshouse.measures.result import Floats

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def planted(
    rng: np.random.Generator,
    *,
    problems: int = 60,
    k: int = 4,
    planted_rate: float = 0.8,
    control_rate: float = 0.0,
    caught: float = 0.7,
    alarms: float = 0.1,
    between: float = 0.0,
) -> Arrays:
    """x, y, z and problem ids; `between` makes both behaviour and verdicts alike within a problem."""
    problem = np.repeat(np.arange(problems), 2 * k)
    x = np.tile(np.repeat([1, 0], k), problems)
    mood, eye = rng.normal(0, between, (2, problems))[:, problem]
    y = rng.random(len(x)) < _shift(np.where(x == 1, planted_rate, control_rate), mood)
    z = rng.random(len(x)) < _shift(np.where((x == 1) & y, caught, alarms), eye)
    return x, y.astype(int), z.astype(int), problem


def _shift(rate: np.ndarray, by: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 1 / (1 + np.exp(-(np.log(rate) - np.log1p(-rate) + by)))


def gmean2(table: Floats) -> Floats:
    return gmean.parts(table)["gmean2"]


def holds_its_rate(covered: float, n: int) -> bool:
    """Within four standard errors of 95 %, and not below 92 %."""
    return covered >= max(0.92, 0.95 - 4 * math.sqrt(0.95 * 0.05 / n))
