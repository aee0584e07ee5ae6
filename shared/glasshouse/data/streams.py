"""Streams of problems: fresh ones, or a fixed set over and over. One line of config apart.

A stream's state is a few counters, so that it can be resumed anywhere. `fresh` walks a keyed
permutation of each level's index space and passes over what belongs to another split. A level that
is used up is left alone until all of them are: no problem comes twice until the whole space is
used up, in constant memory. Where counters are not enough (reasoning-gym's tasks, whose spaces
cannot be numbered, and curricula, whose stages overlap), a ledger on disk says what was drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from glasshouse import randomness
from glasshouse.data.permutation import Permutation
from glasshouse.data.seen_problems import Ledger
from glasshouse.data.splits import Split, split_of
from glasshouse.errors import RunError
from glasshouse.tasks import Task
from glasshouse.types import Problem

TRIES = 20_000
"""Where a space cannot be numbered: it counts as used up after so many draws without a new one."""


class UsedUp(RunError):
    """Every problem has been drawn, and the stream was told to stop there."""


class Stream(Protocol):
    """Problems, a few at a time."""

    laps: int
    """How often a stream of fresh problems was used up and started over."""

    def take(self, count: int) -> list[Problem]:
        """The next problems."""

    def reach(self, step: int) -> None:
        """The step that the next problems are for: a curriculum changes its difficulty here."""

    def keep(self, folder: Path) -> None:
        """Where to write down what counters cannot hold."""

    def state(self) -> dict[str, Any]:
        """Counters to go on from, as JSON values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from here."""


class Fresh:
    """Problems of one split, each once.

    Example: `Fresh(task, Split.TRAIN, seed=0).take(32)`; with a curriculum,
    `Fresh(easy, Split.TRAIN, seed=0, later={30: hard})`.
    """

    def __init__(
        self,
        task: Task[Any],
        split: Split,
        seed: int,
        when_used_up: Literal["restart", "stop"] = "restart",
        later: Mapping[int, Task[Any]] | None = None,
    ) -> None:
        self.split, self.seed, self.when_used_up = split, seed, when_used_up
        self.starts = [0, *sorted(later or {})]
        self.tasks = [task, *(t for _, t in sorted((later or {}).items()))]
        spaces = [{k: v for k, v in t.levels().items() if v is None or v > 0} for t in self.tasks]
        self.needs_ledger = len(spaces) > 1 or None in spaces[0].values()
        self.spaces = spaces
        self.ledger: Ledger | None = None
        self.folder: Path | None = None
        self.turns: list[list[int]] = []  # (stage, draws before it), in the order they came
        self._begin()

    def _begin(self) -> None:
        self.turns = [[0, 0]]
        self.laps = 0
        self.drawn = 0
        self.lap_start = 0  # draws before this lap
        self._enter(0)

    def _enter(self, stage: int) -> None:
        """Start on a stage's space from its beginning."""
        self.stage, self.task, self.levels = stage, self.tasks[stage], self.spaces[stage]
        apart = (stage,) if stage else ()
        self.orders = {
            level: Permutation(
                size, randomness.key("order", self.task.name, self.split, self.seed, level, *apart)
            )
            for level, size in self.levels.items()
            if size is not None
        }
        self.counters = dict.fromkeys(self.levels, 0)
        self.closed: set[str] = set()  # levels without numbers in which nothing new was found

    def reach(self, step: int) -> None:
        stage = max(i for i, start in enumerate(self.starts) if start <= max(step, 0))
        if stage != self.stage:
            self._enter(stage)
            self.turns.append([stage, self.drawn])

    def keep(self, folder: Path) -> None:
        if self.ledger:
            self.ledger.close()
        self.folder, self.ledger = folder, None

    def take(self, count: int) -> list[Problem]:
        if self.needs_ledger and self.ledger is None:
            self._open_ledger()
        taken = [self._next() for _ in range(count)]
        if self.ledger:
            self.ledger.commit()
        return taken

    def _next(self) -> Problem:
        """A level that is not used up, each as likely as any, then its next problem."""
        choice = randomness.key("level", self.seed, self.split, self.drawn)
        for _ in range(2):
            while left := [level for level in self.levels if self._has_more(level)]:
                problem = self._walk(left[choice % len(left)])
                if problem is not None:
                    self.drawn += 1
                    return problem
            if self.drawn == self.lap_start:
                break
            self._used_up()
        raise RunError(
            f"{self.task.name} has no problem in the {self.split} split at these options."
        )

    def _has_more(self, level: str) -> bool:
        size = self.levels[level]
        return level not in self.closed if size is None else self.counters[level] < size

    def _used_up(self) -> None:
        if self.when_used_up == "stop":
            raise UsedUp(
                f"{self.task.name} is used up: after {self.drawn - self.lap_start:,} draws it has no new "
                f"{self.split} problem at these options. Make the space larger (task.options), or let "
                "the run start over (data.on_exhausted=restart)."
            )
        self.laps += 1
        self.lap_start = self.drawn
        self.closed = set()
        for level in self.orders:
            self.counters[level] = 0  # in the same order again
        if self.ledger:
            self.ledger.rewind(0)

    def _walk(self, level: str) -> Problem | None:
        """The next problem of this level and split; None if the level is used up."""
        size = self.levels[level]
        last = self.counters[level] + TRIES if size is None else size
        while (index := self.counters[level]) < last:
            self.counters[level] += 1
            problem = self.task.at(level, self._number(level, index))
            if split_of(problem) is not self.split:
                continue
            if self.ledger and not self.ledger.add(problem.key, self.drawn):
                continue
            if len(self.tasks) == 1:
                return problem
            stage = self.stage + 1
            label = f"{problem.level}, stage {stage}"
            return replace(problem, level=label, meta={**problem.meta, "stage": stage})
        if size is None:
            self.closed.add(level)
        return None

    def _number(self, level: str, index: int) -> int:
        if level in self.orders:
            return self.orders[level](index)
        return randomness.key("draw", self.seed, self.split, level, index) >> 1

    # --- resuming --------------------------------------------------------------------------

    def _open_ledger(self) -> None:
        """The ledger as it stood at this point: wound back, or, if it is not all there, filled by
        drawing everything again. So the state needs no keys, and a lost file costs only time."""
        self.ledger = Ledger(self.folder / "drawn.sqlite" if self.folder else None)
        self.ledger.rewind(self.drawn)
        if self.ledger.size == self.drawn - self.lap_start:
            return
        state = self.state()
        self.ledger.rewind(0)
        self._begin()
        for (stage, _), until in zip(
            state["turns"], [t[1] for t in state["turns"][1:]] + [state["drawn"]], strict=True
        ):
            self.reach(self.starts[stage])
            while self.drawn < until:
                self._next()
        self.ledger.commit()
        if self.state() != state:
            raise RunError(
                f"The {self.task.name} stream cannot go on where it stopped: the same draws give other "
                "problems now. Resume with the code and options that the run was started with."
            )

    def state(self) -> dict[str, Any]:
        return {
            "counters": dict(self.counters),
            "closed": sorted(self.closed),
            "turns": [list(turn) for turn in self.turns],
            "lap_start": self.lap_start,
            "laps": self.laps,
            "drawn": self.drawn,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.turns = [list(turn) for turn in state["turns"]]
        self._enter(self.turns[-1][0])
        self.counters, self.closed = dict(state["counters"]), set(state["closed"])
        self.lap_start, self.laps, self.drawn = state["lap_start"], state["laps"], state["drawn"]
        if self.ledger:
            self.ledger.close()
        self.ledger = None  # opened anew, and wound back, at the next draw


class Fixed:
    """The same problems in every epoch, each epoch in an order of its own.

    Example: `Fixed(problems, seed=0).take(32)`
    """

    laps = 0

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self.problems, self.seed, self.drawn = list(problems), seed, 0

    def take(self, count: int) -> list[Problem]:
        taken = []
        for _ in range(count):
            epoch, place = divmod(self.drawn, len(self.problems))
            order = Permutation(len(self.problems), randomness.key("epoch", self.seed, epoch))
            taken.append(self.problems[order(place)])
            self.drawn += 1
        return taken

    def reach(self, step: int) -> None:
        """The same set at every step."""

    def keep(self, folder: Path) -> None:
        """One counter is all there is to keep."""

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
