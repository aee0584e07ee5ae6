"""A million fresh problems per task: no repeats, no mixing of splits, constant memory, fast draws.

    python -m proofs.fresh_problems [sum_digits …]

`make proofs ONLY=data` runs it; CI runs it with 10,000 (tests/tasks/test_streams.py). The draws are
stored as 64-bit hashes in a preallocated array, so any growth of memory is caused by the stream. If a
task has fewer problems than the count, no problem may repeat within an epoch.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from glasshouse import randomness
from glasshouse.tasks.base import list_tasks, make_task
from glasshouse.tasks.streams import FreshProblems, Split, assign_split
from proofs.checks import run_checks

TASKS = list_tasks(organisms=False)

GYM = "gym.chain_sum"
"""A task that cannot be enumerated; a twentieth of the draws, because reasoning-gym is slow."""
BATCH = 1000


def check_stream(name: str, count: int, seed: int = 0) -> dict[str, float]:
    """Draw `count` training problems, and a fiftieth as many of each other split."""
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
    assert not repeats, "problems repeated within an epoch"
    assert not wrong_split, "problems of another split"
    assert not shared, "problems drawn by the streams of two splits"
    assert growth_mb < 8, "memory grew after the first tenth"
    microseconds = round(1e6 * cpu_seconds / count)
    return {
        "drawn": count,
        "restarts": stream.epochs,
        "memory, MB": growth_mb,
        "µs per draw": microseconds,
    }


def resident_mb() -> float:
    """Current (not peak) resident memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


CHECKS = {name: lambda folder, name=name: check_stream(name, 1_000_000) for name in TASKS}
CHECKS[GYM] = lambda folder: check_stream(GYM, 50_000)


if __name__ == "__main__":
    sys.exit(run_checks(CHECKS, sys.argv[1:]))
