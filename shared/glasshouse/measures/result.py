"""What a measure returns: a value, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import MonitorError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measured value with what it rests on. Undefined is not zero: `value` is None, with a reason.

    Example: `Measure(value=0.75, n=40)`; `Measure(value=None, n=0, reason="no rollout has …")`
    """

    value: float | None
    n: int
    """Rows that the value rests on: its denominator (for two rates, both denominators)."""
    left_out: int = 0
    """Rows that could not count: the monitor gave no verdict, no answer was read, nothing stated."""
    reason: str = ""
    """Why the value is undefined, as a sentence; empty where it is defined."""

    def __post_init__(self) -> None:
        if (self.value is None) != bool(self.reason):
            raise ValueError("a measure has either a value or a reason why it has none")

    @property
    def defined(self) -> bool:
        return self.value is not None

    def as_dict(self) -> dict[str, Any]:
        """JSON values: what results/monitor.json holds."""
        shown: dict[str, Any] = {"value": self.value, "n": self.n, "left_out": self.left_out}
        return shown | ({"reason": self.reason} if self.reason else {})


def undefined(reason: str, *, n: int = 0, left_out: int = 0) -> Measure:
    return Measure(value=None, n=n, left_out=left_out, reason=reason)


def proportion(hits: float, trials: float, nothing: str, *, left_out: float = 0) -> Measure:
    """`hits / trials`, undefined with the reason `nothing` where there are no trials."""
    if not trials:
        return undefined(nothing, left_out=int(left_out))
    return Measure(value=float(hits / trials), n=int(trials), left_out=int(left_out))


def mean(values: ArrayLike, nothing: str) -> Measure:
    """The mean of the values that are numbers; NaN rows are left out and counted."""
    numbers = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(numbers)
    return proportion(numbers[known].sum(), known.sum(), nothing, left_out=(~known).sum())


def labels(name: str, values: ArrayLike) -> Bools:
    """A column of labels, each 0 or 1 (or a bool): anything else is a mistake, not a truth."""
    array = np.asarray(values)
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise MonitorError(f"{name} must be one row of labels, each 0 or 1; got {_shown(array)}.")
    return array.astype(bool)


def same_length(**columns: Sequence[Any] | NDArray[Any]) -> None:
    """All columns describe the same rows."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise MonitorError(f"The columns describe different numbers of rows: {told}.")


def _shown(array: NDArray[Any]) -> str:
    return f"an array of shape {array.shape} with values such as {array.ravel()[:4].tolist()}"
