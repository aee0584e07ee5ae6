"""Rollouts of any trainer: a run directory, or files of TRL, verl, verifiers, prime-rl, Inspect and others.

    files ──► rows ──► the project's format ──► mapping of columns ──► Rollout
    foreign_files       foreign_formats         foreign_fields, foreign_reasoning

A new format is an entry of `foreign_formats.FORMATS`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse import randomness
from glasshouse.errors import RolloutFileError
from glasshouse.runs.foreign_fields import FIELDS, MISSING, FieldMapping
from glasshouse.runs.foreign_files import iter_rows
from glasshouse.runs.foreign_formats import GLASSHOUSE, RolloutFormat, detect_format
from glasshouse.runs.rows import from_row, row_types
from glasshouse.types import Rollout

OnProgress = Callable[[float], None]
"""Called with the share of the source that is read."""


class RolloutSource:
    """Files with their format and mapping, both determined by the first row. Each iteration reads them again.

    Example: `[rollout.text for rollout in RolloutSource(Path("completions.parquet")).rollouts()]`
    """

    def __init__(self, path: Path, mapping: FieldMapping | None = None) -> None:
        mapping = mapping or FieldMapping()
        self.path = path
        self.unanswered = 0
        """Rows without a completion, which are left out: the other project marks them as failed."""
        first = next(iter_rows(path), None)
        if first is None:
            raise RolloutFileError(f"{path} has no rows.")
        self.format: RolloutFormat = detect_format(first)
        expanded = next(self._expand(lambda share: None), None)
        if expanded is None:
            raise RolloutFileError(f"{path} has no rollout in which the model answered.")
        self.is_own = self.format.name == GLASSHOUSE and not mapping.columns and _is_row(expanded)
        merged = mapping.over(self.format.mapping(expanded))
        self.mapping = FieldMapping(
            columns={name: column for name, column in merged.columns.items() if column},
            planted=mapping.planted,
            control=mapping.control,
            ignored=tuple(
                name
                for name in FIELDS
                if name not in merged.columns and expanded.get(name, MISSING) is None
            ),
        )
        self.mapping.check(expanded, str(path))

    def rollouts(self, on_progress: OnProgress = lambda share: None) -> Iterator[Rollout]:
        """Yield each rollout; a run's own are complete. Raise at the end if an id repeats."""
        ids = array("Q")
        for number, row in enumerate(self._expand(on_progress), 1):
            if self.is_own:
                yield from_row(row)
                continue
            rollout, id = self.mapping.read(row, number, str(self.path))
            if id is not None:
                ids.append(randomness.key("external id", id))
            yield rollout
        self._check_ids(ids)

    def _expand(self, on_progress: OnProgress) -> Iterator[Mapping[str, Any]]:
        self.unanswered = 0
        for number, row in enumerate(iter_rows(self.path, on_progress), 1):
            try:
                rollouts = list(self.format.expand(row))
                self.unanswered += not rollouts
                yield from rollouts
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise RolloutFileError(
                    f"{self.path}, row {number}: this is not a row of {self.format.name}: "
                    f"{type(error).__name__}: {error}."
                ) from None

    def _check_ids(self, ids: array[int]) -> None:
        """Raise if an id repeats: 8 bytes per rollout, the only thing that grows with the file."""
        hashed = np.frombuffer(ids, dtype=np.uint64) if ids else np.zeros(0, dtype=np.uint64)
        order = np.argsort(hashed, kind="stable")
        repeats = np.flatnonzero(hashed[order][1:] == hashed[order][:-1])
        if len(repeats):
            second, first = (int(row) + 1 for row in (order[repeats[0] + 1], order[repeats[0]]))
            raise RolloutFileError(
                f'{self.path}, row {second}, column "{self.mapping.columns["id"]}": this id is also that of '
                f"row {first}. Each rollout is measured once: remove duplicates, or do not map id."
            )


def read_rollouts(source: Path, mapping: FieldMapping | None = None) -> Iterator[Rollout]:
    """Yield the rollouts of a run directory or of another trainer's files.

    Example: `read_rollouts(Path("completions.parquet"), FieldMapping.parse(["label=hacked"]))`
    """
    yield from RolloutSource(source, mapping).rollouts()


def _is_row(row: Mapping[str, Any]) -> bool:
    """Has it every field of a rollout? In a table, meta is text."""
    return row.keys() >= row_types().keys() and isinstance(row["meta"], dict)
