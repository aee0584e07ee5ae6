"""Kills a process that appends to a rollout log, and checks that nothing is lost or duplicated.

python -m tests.runs.killed_writer FILE COUNT
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.runs.example_rollouts import make_rollouts

from glasshouse.runs.rollout_log import RolloutLog, RolloutReader
from glasshouse.runs.rows import kind_of


def append_until_killed(file: Path, pipe: int) -> None:
    """Append steps after the last one, and write each completed step to the pipe. Every seventh
    time, truncate the log by two steps first."""
    log = RolloutLog(file)
    logged = {(kind_of(row["split"]), row["step"]) for row in RolloutReader(file).iter_rows()}
    step, positions = max((s for kind, s in logged if kind == "train"), default=0), []
    for count in range(1, 10**6):
        if count % 7 == 0:
            os.write(pipe, b"%d\n" % (step - 2))
            log.truncate_to(positions[-3])
            step, logged = step - 2, set()
        step += 1
        for kind in ("validation", "train"):
            if (kind, step) not in logged:  # a kill between the two leaves one of them
                log.append(make_rollouts(step, split=kind))
        positions.append(log.get_position())
        os.write(pipe, b"%d\n" % step)


def kill_writer(file: Path, generator: random.Random) -> None:
    """Kill a writer at a random time, open the log, and compare it with the completed steps."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            append_until_killed(file, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    time.sleep(generator.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the writer ended before it was killed"
    with os.fdopen(read_end) as pipe:
        completed = [int(line) for line in pipe if line.endswith("\n")]
    RolloutLog(file)
    reader = RolloutReader(file)
    rows = [
        (kind_of(row["split"]), row["step"], row["group"], row["sample"])
        for row in reader.iter_rows()
    ]
    assert not reader.damage, reader.damage
    assert not reader.unfinished, reader.unfinished
    assert len(rows) == len(set(rows)), "a row is duplicated"
    steps = sorted({step for kind, step, *_ in rows if kind == "train"})
    assert steps == list(range(1, len(steps) + 1)), "a step is missing"
    assert sum(kind == "train" for kind, *_ in rows) == 4 * len(steps), "a row is missing"
    if completed:
        assert len(steps) >= completed[-1], f"step {completed[-1]} was completed and is lost"


def main(file: str, count: str) -> None:
    generator = random.Random(0)
    for _ in range(int(count)):
        kill_writer(Path(file), generator)
    print(f"{count} kills: nothing lost, nothing duplicated")


if __name__ == "__main__":
    main(*sys.argv[1:])
