"""A run whose generators are killed repeatedly ends with the weights of an undisturbed run.

    python -m proofs.generator_kills             # 50 kills, about 5 minutes on two cores
    python -m proofs.generator_kills --kills 10

Each step has one kill: during generation, during weight sync, or a second one during the respawn.
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
from pathlib import Path
from typing import Any

from glasshouse.config.loading import load_config
from glasshouse.distributed.monarch.backend import MonarchBackend
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun
from proofs.processes import wait_for_exit, wait_until

ROOT = Path(__file__).resolve().parent.parent
MOMENTS = ("generating", "syncing", "spawning")


def overrides(out: Path, steps: int) -> list[str]:
    return [
        f"model={ROOT / 'models' / 'mock'}", f"out={out}", f"steps={steps}", "data.groups_per_step=8",
        "generate.chunk_size=2", "generate.group_size=48", "generate.max_tokens=64", "evaluate.problems=0",
        "reward.terms={closeness: 1}", "monarch.max_failures=1000", "monarch.backoff=0",
    ]  # fmt: skip


class GeneratorKiller(Display):
    """Kills one generator per step in another thread; a step waits for the previous kill."""

    backend: MonarchBackend

    def __init__(self, kills: int, seed: int) -> None:
        self.kills, self.random = kills, random.Random(seed)
        self.moments: Counter[str] = Counter()
        self.killed: set[int] = set()
        self.thread: threading.Thread | None = None

    def step(self, row: dict[str, Any], groups: Any) -> None:
        if self.thread:
            self.thread.join()
        if row["step"] <= self.kills:
            self.thread = threading.Thread(target=self._kill, args=(row["step"],))
            self.thread.start()

    def _kill(self, step: int) -> None:
        moment, backend = MOMENTS[step % len(MOMENTS)], self.backend
        number = self._choose_ready()
        if moment == "spawning":
            self._kill_generator(number)
            supervisor = backend.supervisors[number]
            wait_until(
                lambda: set(supervisor.pids) - self.killed and not supervisor.ready, poll=0.002
            )
            time.sleep(self.random.uniform(0, 1.5))
        elif moment == "syncing":
            version = backend.version
            _wait_briefly(lambda: backend.version > version)
        else:
            _wait_briefly(lambda: any(p.is_open for p in backend.queue.pending))
            time.sleep(self.random.uniform(0, 0.1))
        self._kill_generator(number)
        self.moments[moment] += 1

    def _choose_ready(self) -> int:
        """Choose a generator that is ready; wait for one if necessary."""
        supervisors = self.backend.supervisors
        wait_until(lambda: any(s.ready for s in supervisors), poll=0.002)
        return self.random.choice([s.number for s in supervisors if s.ready])

    def _kill_generator(self, number: int) -> None:
        for pid in self.backend.supervisors[number].pids:
            self.killed.add(pid)
            os.kill(pid, signal.SIGKILL)


def _wait_briefly(condition: Any) -> None:
    """Wait up to 5 s; kill in any case."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="glasshouse-kills-") as folder:
        undisturbed, disturbed = Path(folder) / "undisturbed", Path(folder) / "disturbed"
        steps = args.kills + 1
        TrainingRun(load_config([], overrides(undisturbed, steps))).train()
        killer, started = GeneratorKiller(args.kills, args.seed), time.monotonic()
        options = [*overrides(disturbed, steps), "backend=monarch"]
        run = TrainingRun(load_config([], options), killer)
        assert isinstance(run.backend, MonarchBackend)
        killer.backend = run.backend
        run.train()
        seconds = time.monotonic() - started
        ended = wait_for_exit([*killer.killed, *run.backend.pids], timeout=5)
        name = f"checkpoints/step-{steps:06d}/model.safetensors"
        equal = (undisturbed / name).read_bytes() == (disturbed / name).read_bytes()
        faults = (disturbed / "results" / "events.jsonl").read_text().count('"event": "fault"')
    kills = sum(killer.moments.values())
    print(
        f"{kills} of {args.kills} kills survived ({dict(killer.moments)}; {faults} faults detected) in "
        f"{seconds:.0f} s; weights {'bitwise equal' if equal else 'DIFFER'}; "
        f"{'no process remains' if ended else 'PROCESSES REMAIN'}"
    )
    return 0 if kills == args.kills and equal and ended and faults >= kills else 1


if __name__ == "__main__":
    sys.exit(main())
