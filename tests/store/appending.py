"""Appends to a record until it is killed, and says each append once it has returned.

As a script it is killed as often as one likes:
    python tests/store/appending.py FOLDER TIMES
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.store.made import rollouts

from glasshouse.store.rollout_log import RolloutLog
from glasshouse.store.rollout_reader import Reader


def append(folder: Path, say: int) -> None:
    """Steps without end, going on after the last; every seventh time two steps are taken back."""
    log = RolloutLog(folder)
    there = {(row["kind"], row["step"]) for row in Reader(folder).rows()}
    step, positions = max((s for kind, s in there if kind == "train"), default=0), []
    for count in range(1, 10**6):
        if count % 7 == 0:
            os.write(say, b"%d\n" % (step - 2))
            log.rewind(positions[-3])
            step, there = step - 2, set()
        step += 1
        for kind in ("validation", "train"):
            if (kind, step) not in there:  # one that a kill parted from the other
                log.append(kind, step, rollouts(step, split=kind))
        positions.append(log.position())
        os.write(say, b"%d\n" % step)


def kill_once(folder: Path, chance: random.Random) -> None:
    """Append, kill, open again, and compare with what was said to be done."""
    hear, say = os.pipe()
    child = os.fork()
    if not child:
        try:
            append(folder, say)
        finally:
            os._exit(1)
    os.close(say)
    time.sleep(chance.uniform(0.0, 0.08))
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"
    with os.fdopen(hear) as file:
        said = [int(line) for line in file if line.endswith("\n")]
    RolloutLog(folder)
    reader = Reader(folder)
    rows = [(row["kind"], row["step"], row["group"], row["sample"]) for row in reader.rows()]
    assert not reader.damage, reader.damage
    assert not reader.unfinished, reader.unfinished
    assert len(rows) == len(set(rows)), "a row is there twice"
    steps = sorted({step for kind, step, *_ in rows if kind == "train"})
    assert steps == list(range(1, len(steps) + 1)), "a step is missing"
    assert sum(kind == "train" for kind, *_ in rows) == 4 * len(steps), "a row is missing"
    if said:
        assert len(steps) >= said[-1], f"step {said[-1]} was done, and {len(steps)} are there"


def main(folder: str, times: str) -> None:
    chance = random.Random(0)
    for _ in range(int(times)):
        kill_once(Path(folder), chance)
    print(f"{times} of {times}: nothing lost, nothing twice")


if __name__ == "__main__":
    main(*sys.argv[1:])
