"""Collect scored rollouts per checkpoint and seed, in memory that does not grow with their number.

Two things are kept of a cell (one checkpoint, one seed):

    counts   of all rollouts, in GROUPS groups of problems: values and intervals
    rows     of all problems, until there are more than MAX_ROWS; then of a random half of the problems,
             then of a quarter, …: permutation nulls, AUROC, g-mean² per instance

A problem's group and whether it is in the sample depend on a hash of its name alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glasshouse import randomness
from glasshouse.monitors.base import MonitorOutput
from glasshouse.values import FAILED, Floats, Ints

GROUPS = 1024
"""Problems are resampled in this many groups once the rows of a cell are only a sample."""
MAX_ROWS = 10_000
UNKNOWN = -1
QUANTITIES = ("correct", "reward", "has_cot", "cot_characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """What the measures need of one rollout."""

    group: str
    planted: int = UNKNOWN
    label: int = UNKNOWN
    correct: float = np.nan
    reward: float = np.nan
    has_cot: float = np.nan
    cot_characters: float = np.nan
    outputs: Sequence[MonitorOutput] = ()
    """One per monitor."""


@dataclass(slots=True)
class Cell:
    """The rollouts of one checkpoint and seed."""

    monitors: int
    rollouts: int = 0
    limit: int = 2**64
    """Rows of problems whose hash is below this are kept."""
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    planted: array[int] = field(default_factory=lambda: array("b"))
    label: array[int] = field(default_factory=lambda: array("b"))
    quantities: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in QUANTITIES}
    )
    flags: list[array[int]] = field(default_factory=list)
    scores: list[array[float]] = field(default_factory=list)
    tables: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(monitors + 1, GROUPS, 2, 2, 3) counts; the last table has no flags."""
    sums: Floats = field(default_factory=lambda: np.zeros(0))
    """(quantities, GROUPS, 2): how many rollouts have a value, and their sum."""

    def __post_init__(self) -> None:
        self.flags = [array("b") for _ in range(self.monitors)]
        self.scores = [array("d") for _ in range(self.monitors)]
        self.tables = np.zeros((self.monitors + 1, GROUPS, 2, 2, 3), dtype=np.int64)
        self.sums = np.zeros((len(QUANTITIES), GROUPS, 2))

    @property
    def is_sample(self) -> bool:
        """Are the rows only those of some problems?"""
        return self.limit < 2**64

    def add(self, rollout: ScoredRollout) -> None:
        self.rollouts += 1
        hashed = randomness.key("external problem", rollout.group)
        group = hashed % GROUPS
        arm = 1 if rollout.planted == UNKNOWN else rollout.planted
        shown = max(0, rollout.label)
        flags = [FAILED if o.failed else int(bool(o.flagged)) for o in rollout.outputs]
        for number, flag in enumerate(flags):
            self.tables[number, group, arm, shown, flag] += 1
        self.tables[-1, group, arm, shown, 0] += 1
        for number, name in enumerate(QUANTITIES):
            value = getattr(rollout, name)
            if value == value:
                sums = self.sums[number, group]
                sums[0] += 1.0
                sums[1] += value
        if hashed >= self.limit:
            return
        self.hashes.append(hashed)
        self.planted.append(arm)
        self.label.append(rollout.label)
        for name, values in self.quantities.items():
            values.append(getattr(rollout, name))
        for number, (flag, output) in enumerate(zip(flags, rollout.outputs, strict=True)):
            self.flags[number].append(flag)
            self.scores[number].append(np.nan if output.score is None else output.score)
        if len(self.hashes) > MAX_ROWS:
            self._halve()

    def _halve(self) -> None:
        """Keep the rows of the half of the problems with the smaller hashes; of a single problem, the
        rows so far."""
        problems = sorted(set(self.hashes))
        if len(problems) == 1:
            self.limit = 0  # add no more
            return
        self.limit = problems[len(problems) // 2]
        kept = [i for i, hashed in enumerate(self.hashes) if hashed < self.limit]
        columns: list[array[Any]] = [self.hashes, self.planted, self.label]
        columns += [*self.quantities.values(), *self.flags, *self.scores]
        for column in columns:
            values = array(column.typecode, [column[i] for i in kept])
            del column[:]
            column.extend(values)

    def count_problems(self) -> int:
        """Problems with a row; those of the whole cell unless the rows are a sample."""
        return len(set(self.hashes))
