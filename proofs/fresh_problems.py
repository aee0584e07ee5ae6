"""A million fresh problems per task: no repeats, no mixing of splits, constant memory, fast draws.

    python -m proofs.fresh_problems [--count 1000000] [--tasks sum_digits …]

`make proofs ONLY=data` runs it; CI runs it with 10,000 (tests/tasks/test_streams.py). The draws are
stored as 64-bit hashes in a preallocated array, so any growth of memory is caused by the stream. If a
task has fewer problems than the count, no problem may repeat within an epoch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from glasshouse import randomness
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.streams import FreshProblems, Split, assign_split

TASKS = list_tasks(organisms=False)

GYM = "gym.chain_sum"
"""A task that cannot be enumerated; a twentieth of the draws, because reasoning-gym is slow."""
BATCH = 1000


@dataclass(frozen=True)
class StreamCheck:
    """The result of drawing many problems."""

    task: str
    drawn: int
    epochs: int
    """How often the stream restarted."""
    repeats: int
    """Problems that repeated within an epoch."""
    wrong_split: int
    """Problems of another split."""
    shared: int
    """Problems drawn by the streams of two splits."""
    memory_growth_mb: float
    """Memory at the end minus memory after the first tenth."""
    microseconds: float
    """CPU time per draw."""

    @property
    def holds(self) -> bool:
        return not (self.repeats or self.wrong_split or self.shared) and self.memory_growth_mb < 8


def check_stream(name: str, count: int, seed: int = 0) -> StreamCheck:
    """Draws `count` training problems, and a fiftieth as many of each other split."""
    task, hashes = make_task(name), np.ones(count, dtype=np.uint64)
    stream = FreshProblems(task, Split.TRAIN, seed)
    epochs = np.ones(count, dtype=np.int32)  # zeros would be allocated only when written
    wrong_split, cpu_seconds, early_mb, done = 0, 0.0, 0.0, 0
    while done < count:
        started = time.process_time()
        problems = []
        for _ in range(min(BATCH, count - done)):
            problems += stream.take(1)
            epochs[done + len(problems) - 1] = stream.epochs
        cpu_seconds += time.process_time() - started
        for problem in problems:
            wrong_split += assign_split(problem) is not Split.TRAIN
            hashes[done] = randomness.key(problem.key)
            done += 1
        if not early_mb and done >= count / 10:
            early_mb = resident_mb()
    growth_mb = resident_mb() - early_mb
    repeats = count - sum(len(np.unique(hashes[epochs == e])) for e in range(stream.epochs + 1))
    others = [
        np.array(
            [randomness.key(p.key) for p in FreshProblems(task, split, seed).take(count // 50)]
        )
        for split in (Split.VALIDATION, Split.TEST)
    ]
    pairs = [(hashes, others[0]), (hashes, others[1]), (others[0], others[1])]
    shared = sum(len(np.intersect1d(a, b)) for a, b in pairs)
    return StreamCheck(
        name,
        count,
        stream.epochs,
        repeats,
        wrong_split,
        shared,
        growth_mb,
        1e6 * cpu_seconds / count,
    )


def resident_mb() -> float:
    """Current (not peak) resident memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS, GYM])
    args = parser.parse_args()
    all_hold = True
    for name in args.tasks:
        count = args.count // 20 if name.startswith("gym.") else args.count
        result = check_stream(name, count)
        all_hold &= result.holds
        print(
            f"{name:<16} {result.drawn:>9,} drawn, {result.epochs} restarts, {result.repeats} repeats within an epoch, "
            f"{result.wrong_split} of another split, {result.shared} shared between splits, memory "
            f"{result.memory_growth_mb:+.1f} MB, {result.microseconds:.0f} µs per draw: "
            f"{'holds' if result.holds else 'DOES NOT HOLD'}",
            flush=True,
        )
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
