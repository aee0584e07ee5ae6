"""Simulated evaluations of monitors of known quality, and a check of interval coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glasshouse.measurement import rates
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.resampling import Interval
from glasshouse.values import Floats

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def simulate_rollouts(
    rng: np.random.Generator,
    *,
    problems: int = 60,
    k: int = 4,
    planted_rate: float = 0.8,
    control_rate: float = 0.0,
    tpr: float = 0.7,
    fpr: float = 0.1,
    between: float = 0.0,
) -> Arrays:
    """planted, behaviour, flagged and problem; `between` makes rollouts of a problem alike."""
    problem = np.repeat(np.arange(problems), 2 * k)
    planted = np.tile(np.repeat([1, 0], k), problems)
    behaviour_shift, flag_shift = rng.normal(0, between, (2, problems))[:, problem]
    rate = np.where(planted == 1, planted_rate, control_rate)
    behaviour = rng.random(len(planted)) < _shift_logit(rate, behaviour_shift)
    flag_rate = np.where((planted == 1) & behaviour, tpr, fpr)
    flagged = rng.random(len(planted)) < _shift_logit(flag_rate, flag_shift)
    return planted, behaviour.astype(int), flagged.astype(int), problem


def _shift_logit(rate: np.ndarray, by: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 1 / (1 + np.exp(-(np.log(rate) - np.log1p(-rate) + by)))


def columns(planted: Any, behaviour: Any, problems: Any = None) -> Columns:
    problems = np.arange(len(planted)) if problems is None else problems
    arm, shows = (np.array(own, dtype=bool) for own in (planted, behaviour))
    return Columns(problems=problems, planted=arm, behaviour=shows)


def flags(flagged: Any) -> Scores:
    return Scores(monitor="m", flagged=np.array(flagged), scores=np.array(flagged, dtype=float))


def gmean2_of_table(table: Floats) -> Floats:
    return rates.gmean2_parts(table)["gmean2"]


def has_nominal_coverage(coverage: float, n: int) -> bool:
    """Within four standard errors of 95 %, and not below 92 %."""
    return coverage >= max(0.92, 0.95 - 4 * math.sqrt(0.95 * 0.05 / n))


def contains(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high
