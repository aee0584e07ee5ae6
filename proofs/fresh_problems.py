"""A million fresh problems a task: no repeat, none in another split, flat memory, cheap draws.

    python -m proofs.fresh_problems [--count 1000000] [--tasks sum_digits …]

`make data-million` runs it; CI runs it with 50,000 (tests/data/test_million.py). Draws are noted as
64-bit hashes in an array made beforehand, so that growth of memory is the stream's own. Where a
space is smaller than the count, no problem may come twice within a lap.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from glasshouse import randomness
from glasshouse.data import Fresh, Split, split_of
from glasshouse.tasks import TASKS, make

GYM = "gym.chain_sum"
"""A space that cannot be numbered; drawn a twentieth as often, since reasoning-gym is slow."""
BATCH = 1000


@dataclass(frozen=True)
class Found:
    """What a long stretch of a stream showed."""

    task: str
    drawn: int
    laps: int
    repeats: int
    """Problems that came twice within a lap."""
    strays: int
    """Problems of another split."""
    shared: int
    """Problems that streams of two splits both drew."""
    grown_mb: float
    """Memory at the end less memory after the first tenth."""
    microseconds: float
    """CPU time of a draw."""

    @property
    def holds(self) -> bool:
        return not (self.repeats or self.strays or self.shared) and self.grown_mb < 8


def draw(name: str, count: int, seed: int = 0) -> Found:
    """Draw `count` training problems, and a fiftieth as many of the other splits beside them."""
    task, hashes = make(name), np.ones(count, dtype=np.uint64)
    stream = Fresh(task, Split.TRAIN, seed)
    laps = np.ones(count, dtype=np.int32)  # ones, since zeros take their memory only when used
    strays, spent, early, done = 0, 0.0, 0.0, 0
    while done < count:
        before = time.process_time()
        problems = []
        for _ in range(min(BATCH, count - done)):
            problems += stream.take(1)
            laps[done + len(problems) - 1] = stream.laps
        spent += time.process_time() - before
        for problem in problems:
            strays += split_of(problem) is not Split.TRAIN
            hashes[done] = randomness.key(problem.key)
            done += 1
        if not early and done >= count / 10:
            early = resident_mb()
    grown = resident_mb() - early
    repeats = count - sum(len(np.unique(hashes[laps == lap])) for lap in range(stream.laps + 1))
    others = [
        np.array([randomness.key(p.key) for p in Fresh(task, split, seed).take(count // 50)])
        for split in (Split.VALIDATION, Split.TEST)
    ]
    pairs = [(hashes, others[0]), (hashes, others[1]), (others[0], others[1])]
    shared = sum(len(np.intersect1d(a, b)) for a, b in pairs)
    return Found(name, count, stream.laps, repeats, strays, shared, grown, 1e6 * spent / count)


def resident_mb() -> float:
    """Memory in use now, not at its peak."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS, GYM])
    args = parser.parse_args()
    held = True
    for name in args.tasks:
        count = args.count // 20 if name.startswith("gym.") else args.count
        found = draw(name, count)
        held &= found.holds
        print(
            f"{name:<16} {found.drawn:>9,} drawn, {found.laps} laps, {found.repeats} repeats within a lap, "
            f"{found.strays} of another split, {found.shared} shared between splits, memory "
            f"{found.grown_mb:+.1f} MB, {found.microseconds:.0f} µs a draw: "
            f"{'holds' if found.holds else 'DOES NOT HOLD'}",
            flush=True,
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
