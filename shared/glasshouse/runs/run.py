"""Read a run directory: metrics, events and rollouts as iterators and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.config.schema import Config
from glasshouse.errors import RunError, did_you_mean, import_extra
from glasshouse.runs.checkpoints import Checkpoint, list_checkpoints
from glasshouse.runs.rollout_log import RolloutReader
from glasshouse.runs.rows import RolloutFilter, Row
from glasshouse.runs.run_directory import (
    is_run_directory,
    load_evaluations,
    load_events,
    load_metrics,
    load_summary,
    load_verified_config,
)

if TYPE_CHECKING:
    from glasshouse.runs.verify import RunCheck


@dataclass(frozen=True, slots=True)
class Records:
    """Rows that are read again each time they are iterated over, or as a table.

    Example: `open_run("runs/try").metrics().to_pandas().plot("step", "accuracy")`
    """

    read: Callable[[], Iterable[Row]]
    """Starts a new iteration."""

    def __iter__(self) -> Iterator[Row]:
        return iter(self.read())

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`."""
        (pandas,) = import_extra("notebook", "A table", "pandas")
        return pandas.DataFrame(list(self.read()))


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, also of a run that is still training. Reading changes nothing.

    Example: `[row["text"] for row in open_run("runs/try").rollouts(first_step=60)]`
    """

    path: Path

    @property
    def config(self) -> Config:
        return load_verified_config(self.path)[0]

    @property
    def summary(self) -> Row | None:
        """Evaluation before and after training; None while it trains, and if it is damaged."""
        return load_summary(self.path)

    def metrics(self) -> Records:
        """One row per training step."""
        return Records(lambda: load_metrics(self.path))

    def events(self) -> Records:
        """One row per event: start, evaluations, checkpoints, warnings, interruptions."""
        return Records(lambda: load_events(self.path))

    def evaluations(self) -> Records:
        """The last evaluation of each step."""
        return Records(lambda: load_evaluations(self.path))

    def rollouts(self, where: RolloutFilter | None = None, **filters: Any) -> Records:
        """Every prompt and completion, one step in memory at a time. The filters are the fields of
        `RolloutFilter`. Iterating over a damaged log raises after the rows that can be read.

        Example: `run.rollouts(splits=("train",), first_step=10, correct=False)`
        """
        known = [field.name for field in fields(RolloutFilter)]
        for name in filters.keys() - known:
            raise RunError(f'Rollouts have no filter "{name}".{did_you_mean(name, known)}')
        selected = where or RolloutFilter(**filters)
        return Records(lambda: self._read_rollouts(selected))

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, oldest first, each verified."""
        return list_checkpoints(self.path / "checkpoints")

    def verify(self) -> RunCheck:
        """Compare every file with its checksum."""
        from glasshouse.runs.verify import verify_run

        return verify_run(self.path)

    def _read_rollouts(self, where: RolloutFilter) -> Iterator[Row]:
        reader = RolloutReader(self.path)
        yield from reader.iter_rows(where)
        reader.raise_if_damaged()


def open_run(path: str | Path) -> Run:
    """Open a run directory to read it.

    Example: `open_run("runs/try").metrics().to_pandas()`
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist.")
    if not is_run_directory(path):
        raise RunError(f"{path} is not a run directory: it has no config.yaml.")
    return Run(path)
