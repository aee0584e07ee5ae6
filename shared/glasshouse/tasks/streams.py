"""Problems: enumerated, split by a hash, streamed without repeats (`data.source`: fresh), or a fixed set.

A problem is in the same split on every machine, in every run and for every seed, with nothing stored.
`FreshProblems` walks through a keyed permutation of each level's problems and skips those of other
splits. An exhausted level is skipped until all levels are exhausted, so no problem repeats before then.
The state is a few counters. Where counters are not enough (reasoning-gym tasks cannot be enumerated, the
stages of a curriculum overlap), the hashes of the problems seen so far are in memory, and resuming
repeats the draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal

from glasshouse import randomness
from glasshouse.errors import RunError
from glasshouse.tasks.base import Task
from glasshouse.types import Problem

ROUNDS = 6
MASK = (1 << 64) - 1


def multiset_count(n: int, k: int) -> int:
    """The number of multisets of `k` elements from `n`. Example: (990, 2) gives 490545."""
    return math.comb(n + k - 1, k)


def multiset_at(n: int, k: int, index: int) -> tuple[int, ...]:
    """The multiset number `index`, as a non-decreasing tuple of elements of `range(n)`."""
    chosen: list[int] = []
    for size in range(k, 0, -1):
        low, high = 0, n + k - 1  # largest c with comb(c, size) <= index
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if math.comb(middle, size) <= index else (low, middle)
        index -= math.comb(low, size)
        chosen.append(low - size + 1)
    return tuple(reversed(chosen))


def mixed_radix(index: int, bases: Sequence[int]) -> tuple[int, ...]:
    """The digits of `index`, the last base varying fastest. Example: (7, (2, 5)) gives (1, 2)."""
    digits: list[int] = []
    for base in reversed(bases):
        index, digit = divmod(index, base)
        digits.append(digit)
    return tuple(reversed(digits))


class Permutation:
    """Example: `sorted(Permutation(10, 7)(i) for i in range(10)) == list(range(10))`."""

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError("a permutation needs at least one element")
        self.size = size
        self.half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self.round_keys = [_mix(key + (r + 1) * 0x9E3779B97F4A7C15) for r in range(ROUNDS)]

    def __call__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(f"{index} is not in [0, {self.size})")
        mask = (1 << self.half_bits) - 1
        while True:  # the network permutes 4**half_bits numbers: fewer than 4 passes on average
            left, right = index >> self.half_bits, index & mask
            for key in self.round_keys:
                left, right = right, left ^ (self._round(right, key) & mask)
            index = left << self.half_bits | right
            if index < self.size:
                return index

    def _round(self, value: int, key: int) -> int:
        mixed = _mix((value & MASK) + key)
        while value > MASK:  # halves beyond 64 bits: mix in the remaining words
            value >>= 64
            mixed = mixed << 64 | _mix((value & MASK) ^ mixed & MASK)
        return mixed


def _mix(z: int) -> int:
    """SplitMix64's finaliser."""
    z &= MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


MAX_TRIES = 20_000
"""A level that cannot be enumerated counts as exhausted after this many draws without a new problem."""


class Split(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


SPLIT_PERCENT = {Split.TRAIN: 80, Split.VALIDATION: 10, Split.TEST: 10}
"""Percentage of each task's problems."""


def assign_split(problem: Problem) -> Split:
    """The split of a problem: a function of its task and key, unless its dataset says which it is in."""
    if given := problem.meta.get("split"):
        return Split(given)
    bucket = randomness.key("split", problem.task, problem.key) % 100
    if bucket < SPLIT_PERCENT[Split.TRAIN]:
        return Split.TRAIN
    return Split.TEST if bucket >= 100 - SPLIT_PERCENT[Split.TEST] else Split.VALIDATION


class ProblemsExhausted(RunError):
    """All problems have been drawn, and the stream does not restart."""


class FreshProblems:
    """The problems of one split, each once.

    Example: `FreshProblems(task, Split.TRAIN, seed=0).take(32)`; with a curriculum,
    `FreshProblems(easy, Split.TRAIN, seed=0, schedule={30: hard})`.
    """

    def __init__(
        self,
        task: Task[Any],
        split: Split,
        seed: int,
        on_exhausted: Literal["restart", "stop"] = "restart",
        schedule: Mapping[int, Task[Any]] | None = None,
    ) -> None:
        self.split, self.seed, self.on_exhausted = split, seed, on_exhausted
        later_stages = sorted((schedule or {}).items())
        self.stage_starts = [0, *(step for step, _ in later_stages)]
        self.stage_tasks = [task, *(t for _, t in later_stages)]
        self.stage_levels = [
            {level: size for level, size in t.levels().items() if size is None or size > 0}
            for t in self.stage_tasks
        ]
        self.is_curriculum = len(self.stage_tasks) > 1
        self._reset()

    def _reset(self) -> None:
        self.stage_history = [[0, 0]]  # [stage, draws before it], in order
        self.epochs = 0  # how often the problems were exhausted and restarted
        self.drawn = 0
        self.epoch_start = 0  # draws before this epoch
        needs_seen = self.is_curriculum or None in self.stage_levels[0].values()
        # Hashes of this epoch's problems. Of two keys with the same hash (once in 10¹⁰ draws), one is skipped.
        self.seen: set[int] | None = set() if needs_seen else None
        self._enter_stage(0)

    def _enter_stage(self, stage: int) -> None:
        """Starts a stage at the beginning of its problems."""
        self.stage, self.task = stage, self.stage_tasks[stage]
        self.levels = self.stage_levels[stage]
        stage_key = (stage,) if stage else ()
        self.permutations = {
            level: Permutation(
                size,
                randomness.key("order", self.task.name, self.split, self.seed, level, *stage_key),
            )
            for level, size in self.levels.items()
            if size is not None
        }
        self.counters = dict.fromkeys(self.levels, 0)
        self.exhausted: set[str] = set()  # levels that cannot be enumerated and gave nothing new

    def set_step(self, step: int) -> None:
        """Sets the step that the next problems are for; a curriculum changes its difficulty here."""
        stage = max(i for i, start in enumerate(self.stage_starts) if start <= max(step, 0))
        if stage != self.stage:
            self._enter_stage(stage)
            self.stage_history.append([stage, self.drawn])

    def take(self, count: int) -> list[Problem]:
        return [self._next_problem() for _ in range(count)]

    def _next_problem(self) -> Problem:
        """Draws one of the levels that are not exhausted uniformly, then takes its next problem."""
        choice = randomness.key("level", self.seed, self.split, self.drawn)
        for _ in range(2):
            while available := [level for level in self.levels if self._has_more(level)]:
                problem = self._next_of_level(available[choice % len(available)])
                if problem is not None:
                    self.drawn += 1
                    return problem
            if self.drawn == self.epoch_start:
                break
            self._restart()
        raise RunError(
            f"{self.task.name} has no problems in the {self.split} split with these task.options."
        )

    def _has_more(self, level: str) -> bool:
        size = self.levels[level]
        return level not in self.exhausted if size is None else self.counters[level] < size

    def _restart(self) -> None:
        if self.on_exhausted == "stop":
            raise ProblemsExhausted(
                f"{self.task.name} is exhausted: after {self.drawn - self.epoch_start:,} draws there is no "
                f"new {self.split} problem with these options. Choose task.options with more problems, or "
                "set data.on_exhausted=restart."
            )
        self.epochs += 1
        self.epoch_start = self.drawn
        self.exhausted = set()
        for level in self.permutations:
            self.counters[level] = 0  # the same order again
        if self.seen is not None:
            self.seen.clear()

    def _next_of_level(self, level: str) -> Problem | None:
        """The next problem of this level and split; None if the level is exhausted."""
        size = self.levels[level]
        end = self.counters[level] + MAX_TRIES if size is None else size
        while (position := self.counters[level]) < end:
            self.counters[level] += 1
            problem = self.task.problem_at(level, self._problem_index(level, position))
            if assign_split(problem) is not self.split:
                continue
            if self.seen is not None:
                if (hashed := randomness.key(problem.key)) in self.seen:
                    continue
                self.seen.add(hashed)
            if not self.is_curriculum:
                return problem
            stage = self.stage + 1
            label = f"{problem.level}, stage {stage}"
            return replace(problem, level=label, meta={**problem.meta, "stage": stage})
        if size is None:
            self.exhausted.add(level)
        return None

    def _problem_index(self, level: str, position: int) -> int:
        if level in self.permutations:
            return self.permutations[level](position)
        return randomness.key("draw", self.seed, self.split, level, position) >> 1

    def state(self) -> dict[str, Any]:
        """The counters to resume from, as JSON values."""
        return {
            "counters": dict(self.counters),
            "exhausted": sorted(self.exhausted),
            "stage_history": [list(entry) for entry in self.stage_history],
            "epoch_start": self.epoch_start,
            "epochs": self.epochs,
            "drawn": self.drawn,
        }

    def restore(self, state: dict[str, Any]) -> None:
        if self.seen is not None:
            self._repeat_draws(state)
            return
        self.counters, self.exhausted = dict(state["counters"]), set(state["exhausted"])
        self.epoch_start, self.epochs = state["epoch_start"], state["epochs"]
        self.drawn = state["drawn"]

    def _repeat_draws(self, state: dict[str, Any]) -> None:
        """Reaches the state by drawing again, so it need not contain the problems seen."""
        self._reset()
        history = state["stage_history"]
        stage_ends = [*(start for _, start in history[1:]), state["drawn"]]
        for (stage, _), end in zip(history, stage_ends, strict=True):
            self.set_step(self.stage_starts[stage])
            self.take(end - self.drawn)
        if self.state() != state:
            raise RunError(
                f"The {self.task.name} stream cannot be resumed: the same draws now give different "
                "problems. Resume with the code and options that the run was started with."
            )


class FixedProblems:
    """The same problems in every epoch, reshuffled per epoch.

    Example: `FixedProblems(problems, seed=0).take(32)`
    """

    epochs = 0  # a fixed set is meant to repeat: no restart to report

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self.problems, self.seed, self.drawn = list(problems), seed, 0

    def take(self, count: int) -> list[Problem]:
        problems = []
        for _ in range(count):
            epoch, position = divmod(self.drawn, len(self.problems))
            order = Permutation(len(self.problems), randomness.key("epoch", self.seed, epoch))
            problems.append(self.problems[order(position)])
            self.drawn += 1
        return problems

    def set_step(self, step: int) -> None:
        """Does nothing: the problems are the same at every step."""

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


ProblemStream = FreshProblems | FixedProblems
"""A source of training problems."""
