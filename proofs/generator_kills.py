"""A run whose generators are killed again and again ends with the weights of an undisturbed one.

    python -m proofs.generator_kills             # 50 kills, about 5 minutes on two cores
    python -m proofs.generator_kills --kills 10

Each step kills once: in the middle of generating, while weights change hands, or a second time
while the killed one is being spawned anew.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glasshouse import config
from glasshouse.backends.monarch.backend import Monarch
from glasshouse.backends.monarch.runtime import gone
from glasshouse.train import Run
from glasshouse.train.display import Display

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("generating", "syncing", "spawning")


def overrides(out: Path, steps: int) -> list[str]:
    return [
        f"model={ROOT / 'models' / 'mock'}", f"out={out}", f"steps={steps}", "data.groups_per_step=8",
        "generate.chunk_size=2", "generate.group_size=48", "generate.max_tokens=64", "evaluate.problems=0",
        "reward.terms={closeness: 1}", "monarch.max_failures=1000", "monarch.backoff=0",
    ]  # fmt: skip


class Killer(Display):
    """Kills one generator in every step, in another thread; a step waits for its kill."""

    def __init__(self, kills: int, seed: int) -> None:
        self.kills, self.random = kills, random.Random(seed)
        self.placement: Any = None
        self.ways: Counter[str] = Counter()
        self.seen: set[int] = set()
        self.at_work: threading.Thread | None = None

    def step(self, row: dict[str, Any], groups: Any) -> None:
        if self.at_work:
            self.at_work.join()
        if row["step"] <= self.kills:
            self.at_work = threading.Thread(target=self._kill, args=(row["step"],))
            self.at_work.start()

    def _kill(self, step: int) -> None:
        way, placement = WAYS[step % len(WAYS)], self.placement
        if way == "spawning":
            number = self._hit(self._any())
            seat = placement.seats[number]
            until(lambda: set(seat.pids) - self.seen and not seat.ready)
            time.sleep(self.random.uniform(0, 1.5))
            self._hit(number)
        elif way == "syncing":
            before, number = placement.version, self._any()
            until(lambda: placement.version > before, within=5)
            self._hit(number)
        else:
            number = self._any()
            until(lambda: placement.pool.batches, within=5)
            time.sleep(self.random.uniform(0, 0.1))
            self._hit(number)
        self.ways[way] += 1

    def _any(self) -> int:
        """One that is there, waited for if need be."""
        seats = self.placement.seats
        until(lambda: any(seat.ready for seat in seats))
        return int(self.random.choice([s.number for s in seats if s.ready]))

    def _hit(self, number: int) -> int:
        for pid in self.placement.seats[number].pids:
            self.seen.add(pid)
            os.kill(pid, signal.SIGKILL)
        return number


def until(condition: Callable[[], Any], within: float = 120) -> None:
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glasshouse-kills-") as folder:
        calm, wild = Path(folder) / "calm", Path(folder) / "wild"
        steps = args.kills + 1
        Run(config.load([], overrides(calm, steps))).train()
        killer, started = Killer(args.kills, args.seed), time.monotonic()
        run = Run(config.load([], [*overrides(wild, steps), "backend=monarch"]), killer)
        assert isinstance(run.placement, Monarch)
        killer.placement = run.placement
        run.train()
        seconds = time.monotonic() - started
        left = not gone([*killer.seen, *run.placement.pids], within=5)
        name = f"checkpoints/step-{steps:06d}/model.safetensors"
        equal = (calm / name).read_bytes() == (wild / name).read_bytes()
        faults = (wild / "results" / "events.jsonl").read_text().count('"event": "fault"')
    done = sum(killer.ways.values())
    print(
        f"{done} of {args.kills} kills survived ({dict(killer.ways)}; {faults} faults noticed) in "
        f"{seconds:.0f} s; weights {'bitwise equal' if equal else 'DIFFER'}; "
        f"{'PROCESSES LEFT' if left else 'no process left'}"
    )
    return 0 if done == args.kills and equal and not left and faults >= done else 1


if __name__ == "__main__":
    sys.exit(main())
