"""What a measure returns: a value, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import MonitorError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FAILED = -1
"""The flag of a monitor that gave no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """A value with its denominator. Undefined is not zero: `value` is None, with a reason.

    Example: `MeasureResult(value=0.75, n=40)`; `MeasureResult(value=None, n=0, reason="no rollout …")`
    """

    value: float | None
    n: int
    """Rows in the denominator; for a difference of two rates, in both denominators."""
    left_out: int = 0
    """Rows that could not count: the monitor failed, no answer was parsed, no statement was found."""
    reason: str = ""
    """Why the value is undefined; empty where it is defined."""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.reason):
            raise ValueError("a result has either a value or a reason why it has none")

    def as_dict(self) -> dict[str, Any]:
        """The JSON that results/monitor.json holds."""
        entry: dict[str, Any] = {"value": self.value, "n": self.n, "left_out": self.left_out}
        return entry | ({"reason": self.reason} if self.reason else {})


def undefined_result(reason: str, *, n: int = 0, left_out: int = 0) -> MeasureResult:
    return MeasureResult(value=None, n=n, left_out=left_out, reason=reason)


def proportion_result(
    hits: float, trials: float, reason: str, *, left_out: float = 0
) -> MeasureResult:
    """`hits / trials`, undefined with this reason where there are no trials."""
    if not trials:
        return undefined_result(reason, left_out=int(left_out))
    return MeasureResult(value=float(hits / trials), n=int(trials), left_out=int(left_out))


def mean_result(values: ArrayLike, reason: str) -> MeasureResult:
    """The mean of the values; NaN values are left out and counted."""
    numbers = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(numbers)
    return proportion_result(numbers[known].sum(), known.sum(), reason, left_out=(~known).sum())


def as_floats(values: Iterable[float]) -> Floats:
    """A column of numbers; booleans become 0 and 1."""
    return np.array(list(values), dtype=np.float64)


def as_labels(name: str, values: ArrayLike) -> Bools:
    """A column of labels, each 0, 1 or a bool; anything else is an error, never truthiness."""
    array = np.asarray(values)
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise MonitorError(
            f"{name} must be one column of labels, each 0 or 1; got an array of shape "
            f"{array.shape} with values such as {array.ravel()[:4].tolist()}."
        )
    return array.astype(bool)


def check_same_length(**columns: Sequence[Any] | NDArray[Any]) -> None:
    """Raise unless all columns have the same number of rows."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise MonitorError(f"The columns have different numbers of rows: {counts}.")
