"""A measure: a value with its interval, null and ceiling, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import MonitorError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FAILED = -1
"""The flag of a monitor that gave no verdict."""


ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measured value with everything that is reported with it. Undefined is not zero: `value` is None,
    with a reason.

    Example: `Measure(value=0.75, n=40)`; `Measure(value=None, n=0, undefined="no rollout …")`
    """

    id: str = ""
    """As in the registry of measures."""
    monitor: str = ""
    """The monitor that it belongs to, if any."""
    source: str = ""
    """The evaluation that it comes from; empty for a run's own."""
    value: float | None
    n: int
    """Rows in the denominator; for a difference of two rates, in both denominators."""
    left_out: int = 0
    """Rows that could not count: the monitor failed, no answer was parsed, no statement was found."""
    undefined: str = ""
    """Why there is no value; with a value, why it has no interval or no null."""
    units: int = 0
    """Problems that were resampled."""
    low: float | None = None
    high: float | None = None
    """95 % interval."""
    null: float | None = None
    """The mean that permuted flags, or rollouts without the intervention, give."""
    p: float | None = None
    """One-sided, against the null."""
    floor: float | None = None
    """The worst possible value."""
    ceiling: float | None = None
    """The best possible value; for g-mean², the best that flagging at random reaches."""

    def __post_init__(self) -> None:
        if self.value is None and not self.undefined:
            raise ValueError("a measure has a value, or a reason why it has none")

    @property
    def name(self) -> str:
        """The published id. Example: `organism.disclosure_rule.undetected_use`"""
        return ".".join(filter(None, (self.source, self.monitor, self.id)))

    @property
    def informative(self) -> bool:
        """Is the value better than its null? The value alone does not say so."""
        return self.value is not None and self.p is not None and self.p <= ALPHA

    def as_dict(self) -> dict[str, Any]:
        """The JSON that results/monitor.json holds under the measure's name."""
        fields = asdict(self)
        return {name: fields[name] for name in fields if name not in ("id", "monitor", "source")}


def undefined_measure(reason: str, *, n: int = 0, left_out: int = 0) -> Measure:
    return Measure(value=None, n=n, left_out=left_out, undefined=reason)


def proportion(hits: float, trials: float, reason: str, *, left_out: float = 0) -> Measure:
    """`hits / trials`, undefined with this reason where there are no trials."""
    if not trials:
        return undefined_measure(reason, left_out=int(left_out))
    return Measure(value=float(hits / trials), n=int(trials), left_out=int(left_out))


def mean(values: ArrayLike, reason: str = "there is no rollout") -> Measure:
    """The mean of the values; NaN values are left out and counted."""
    numbers = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(numbers)
    return proportion(numbers[known].sum(), known.sum(), reason, left_out=(~known).sum())


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
