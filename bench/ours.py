"""Glasshouse's side: the real loop, a step at a time.

What is timed is `Run`'s own step: drawing, asking, generating, grading, learning, handing the
weights over, recording every rollout to disk.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker import Port, Reply
from workload import Work

from glasshouse import randomness
from glasshouse.store import RunDirectory
from glasshouse.train.loop import Run
from glasshouse.types import Request


class Ours:
    """A run that takes a step when told."""

    def __init__(self, work: Work, threads: int, skip: bool, **changed: Any) -> None:
        self.work, self.room = work, tempfile.TemporaryDirectory(prefix="glasshouse-bench-")
        out = str(Path(self.room.name) / "run")
        # without skipping, rows without a signal go through forward and backward like all others
        self.run = run = Run(work.config(threads, out=out, skip=skip, **changed))
        if not work.spec.ends:
            run.policy.model.generation_config.eos_token_id = []
        ask = work.asking(run.task)
        run.task.messages = ask  # type: ignore[method-assign]
        self.directory = RunDirectory.open(Path(out), run.config)
        problems = work.stream(run.config).take(work.problems)
        prompts = [run.policy.prompt(ask(p, run.config.task.style))[1] for p in problems]
        self.requests = [
            Request(
                prompt=prompt,
                keys=tuple(randomness.key("bench", n, k) for k in range(work.samples)),
            )
            for n, prompt in enumerate(prompts)
        ]

    def step(self) -> Reply:
        started, busy = time.perf_counter(), self.cpu_seconds()
        self.run._train_step(self.directory)
        seconds, cpu = time.perf_counter() - started, self.cpu_seconds() - busy
        last = (self.directory.results / "metrics.jsonl").read_text().splitlines()[-1]
        row = json.loads(last)
        rows = self.work.problems * self.work.samples
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "tokens": round(row["length"] * rows),
            "rows": rows,
            "learned_rows": row["learned_rows"],
            "laps": {k: v for k, v in row["timing"].items() if isinstance(v, float)},
        }

    def generate(self) -> Reply:
        """The first step's prompts, in the run's own chunks, each time with other noise."""
        self.requests = [
            replace(r, keys=tuple((k * 3 + 1) % 2**64 for k in r.keys)) for r in self.requests
        ]
        size = self.run.config.generate.chunk_size
        chunks = [self.requests[n : n + size] for n in range(0, len(self.requests), size)]
        started = time.perf_counter()
        made = self.run.placement.generate(chunks, self.run.sampling, lambda: None)
        seconds = time.perf_counter() - started
        tokens = sum(len(c.tokens) for chunk in made for group in chunk for c in group)
        return {"seconds": seconds, "tokens": tokens}

    @property
    def pids(self) -> list[int]:
        """The processes that work for this one, if there are any."""
        return getattr(self.run.placement, "pids", [])

    def cpu_seconds(self) -> float:
        """Of this process and those that work for it."""
        ticks = 0
        for pid in self.pids:
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(after_name[11]) + int(after_name[12])  # in user and in kernel mode
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    port = Port()
    settings = json.loads(sys.argv[1])
    ours = Ours(Work(**settings.pop("work")), **settings)
    ours.generate()  # processes of its own are there once they have answered
    port.serve({"step": ours.step, "generate": ours.generate}, lambda: ours.pids)
    ours.run.placement.close()


if __name__ == "__main__":
    main()
