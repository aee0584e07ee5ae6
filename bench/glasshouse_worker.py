"""The Glasshouse side of the benchmark: the real training loop, one step at a time.

A step is everything that `run_training_loop` does for it: sampling problems, generating, grading,
learning, passing the weights to the generator, and logging every rollout to disk.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_gemm import count_operations
from worker_process import Port, Reply
from workload import STYLE, Workload

from glasshouse import randomness
from glasshouse.runs.rollout_log import read_rows
from glasshouse.runs.run_directory import RunDirectory
from glasshouse.track.trackers import start_trackers
from glasshouse.training.loop import run_training_loop
from glasshouse.training.run import TrainingRun
from glasshouse.types import Request


class BenchmarkRun(TrainingRun):
    """Saves no checkpoints, as TRL's trainer does not in its benchmark."""

    def open(self, path: Path) -> None:
        """Open the run directory, without trackers, signals or checkpoints."""
        resources = ExitStack()
        self.directory = resources.enter_context(RunDirectory(path, self.config))
        self.trackers = resources.enter_context(
            start_trackers((), path, self.config, self.directory.log_event)
        )
        self.is_open = True

    def checkpoint_if_due(self, reward: float, *, is_last: bool) -> None:
        pass

    def save_unsaved_step(self, reason: str) -> None:
        pass


class GlasshouseWorker:
    """A run that trains one step per call."""

    def __init__(self, work: Workload, threads: int, skip: bool, **overrides: Any) -> None:
        self.work, self.folder = work, tempfile.TemporaryDirectory(prefix="glasshouse-bench-")
        out = str(Path(self.folder.name) / "run")
        # without skipping, rows of zero advantage go through forward and backward like all others
        self.run = BenchmarkRun(work.config(threads, out=out, skip=skip, **overrides))
        self.config, policy = self.run.config, self.run.policy
        if not work.ends:
            policy.model.generation_config.eos_token_id = []
        self.run.open(Path(out))
        problems = work.problems(self.config).take(work.groups_per_step)
        self.requests = [
            Request(
                prompt=policy.encode_prompt(self.run.task.messages(problem, STYLE))[1],
                noise_keys=tuple(randomness.key("bench", n, k) for k in range(work.group_size)),
            )
            for n, problem in enumerate(problems)
        ]

    def step(self) -> Reply:
        """Trains one step and returns its metrics and durations."""
        steps = self.run.progress.step + 1
        self.run.config = self.config.model_copy(update={"steps": steps})
        started, cpu_before = time.perf_counter(), self.cpu_seconds()
        run_training_loop(self.run)
        seconds, cpu = time.perf_counter() - started, self.cpu_seconds() - cpu_before
        metrics_file = self.run.directory.results / "metrics.jsonl"
        metrics = json.loads(metrics_file.read_text().splitlines()[-1])
        rows = self.work.groups_per_step * self.work.group_size
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "tokens": round(metrics["length"] * rows),
            "rows": rows,
            "learned_rows": metrics["learned_rows"],
            "phases": {k: v for k, v in metrics["timing"].items() if isinstance(v, float)},
            "operations": self.count_operations(steps),
        }

    def count_operations(self, step: int) -> dict[str, float]:
        """Of the matrix products that this step needed, for a model that the kernel computes."""
        if not self.run.computed_by.startswith("kernel"):
            return {}
        rows = list(read_rows(self.run.directory.path, "train", after=step - 1))
        return count_operations(self.work.model, rows)

    def generate(self) -> Reply:
        """Generates for the prompts of the first step in the run's chunks, each time with new noise."""
        self.requests = [
            replace(r, noise_keys=tuple((k * 3 + 1) % 2**64 for k in r.noise_keys))
            for r in self.requests
        ]
        size = self.config.generate.chunk_size
        chunks = [self.requests[n : n + size] for n in range(0, len(self.requests), size)]
        started = time.perf_counter()
        submitted = self.run.backend.submit(chunks, self.config.generate.sampling(), lambda: None)
        results = list(submitted)
        seconds = time.perf_counter() - started
        tokens = sum(len(c.tokens) for chunk in results for group in chunk for c in group)
        return {"seconds": seconds, "tokens": tokens}

    @property
    def pids(self) -> list[int]:
        """The processes of the backend, if it has any."""
        return getattr(self.run.backend, "pids", [])

    def cpu_seconds(self) -> float:
        """CPU time of this process and those of the backend."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # user and kernel mode
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    port = Port()
    settings = json.loads(sys.argv[1])
    worker = GlasshouseWorker(Workload(**settings.pop("work")), **settings)
    worker.generate()  # the processes of the backend exist once they have replied
    port.serve({"step": worker.step, "generate": worker.generate}, lambda: worker.pids)
    worker.run.backend.close()


if __name__ == "__main__":
    main()
