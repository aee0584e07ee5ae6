"""Train on two hosts while one of them is cut off, reconnects, is killed and reconnects again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proofs.hosts_cluster import CONTROLLER, Cluster
from proofs.network import NamespaceNetwork
from proofs.processes import stop_process

DETECTION_LIMIT = 5.0
"""Seconds within which a lost host must be detected."""
Measurements = dict[str, Any]

STEPS = 60
SMALL = [
    f"steps={STEPS}", "data.groups_per_step=16", "generate.group_size=8", "generate.chunk_size=2",
    "generate.max_tokens=64", "evaluate.problems=0", "monarch.verify_every=5",
]  # fmt: skip


def train(cluster: Cluster[NamespaceNetwork]) -> Measurements:
    """The weights of the disturbed run equal those of a local run, bit for bit."""
    local, distributed = cluster.folder / "local", cluster.folder / "distributed"
    cluster.glasshouse("train", "--quiet", *SMALL, f"out={local}")
    process = cluster.network.start(
        CONTROLLER,
        [sys.executable, "-m", "glasshouse", "train", "--quiet", *SMALL, *cluster.overrides,
         "backend=monarch", "monarch.generators=4", f"out={distributed}"],
        env=cluster.environment,
    )  # fmt: skip
    measurements: Measurements = {}
    run = RunMonitor(distributed, process)
    try:
        run.wait_for_step(3)
        measurements["cut detected"] = run.wait_for_loss(lambda: cluster.network.cut_link(3))
        measurements["reconnected"] = run.wait_for_return(lambda: cluster.network.restore_link(3))
        measurements["kill detected"] = run.wait_for_loss(lambda: cluster.kill_worker(3))
        measurements["restarted"] = run.wait_for_return(lambda: cluster.start_worker(3))
        measurements["steps left"] = STEPS - run.step()
        assert process.wait(600) == 0
    finally:
        cluster.network.restore_link(3)
        stop_process(process)
    measurements["events"] = run.count_events("host", "fault", "respawn")
    weights = [
        (out / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()
        for out in (local, distributed)
    ]
    assert weights[0] == weights[1], "the weights differ"
    return measurements


class RunMonitor:
    """Follows a run through the files in its run directory."""

    def __init__(self, out: Path, process: subprocess.Popen[str]) -> None:
        self.out, self.process = out, process

    def rows(self, name: str) -> list[Any]:
        file = self.out / "results" / name
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def step(self) -> int:
        return len(self.rows("metrics.jsonl"))

    def count_events(self, *kinds: str) -> dict[str, int]:
        events = [event["event"] for event in self.rows("events.jsonl")]
        return {kind: events.count(kind) for kind in kinds}

    def wait_for_step(self, step: int) -> None:
        self._wait(lambda: self.step() >= step, f"step {step}")

    def wait_for_loss(self, disturb: Callable[[], object]) -> float:
        """Return the seconds until the run reports a lost host; it must continue without it."""
        seconds = self._seconds_until(disturb, "lost")
        assert seconds < DETECTION_LIMIT, f"the run detected it after {seconds} s"
        self.wait_for_step(self.step() + 2)
        return seconds

    def wait_for_return(self, restore: Callable[[], object]) -> float:
        """Return the seconds until the run reports that the host is connected again."""
        seconds = self._seconds_until(restore, "reconnected")
        self.wait_for_step(self.step() + 2)
        return seconds

    def _seconds_until(self, action: Callable[[], object], status: str) -> float:
        before = self._count_status(status)
        started = time.monotonic()
        action()
        self._wait(lambda: self._count_status(status) > before, status)
        return round(time.monotonic() - started, 1)

    def _count_status(self, status: str) -> int:
        events = self.rows("events.jsonl")
        return sum(e["event"] == "host" and e["status"] == status for e in events)

    def _wait(self, condition: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, f"the run ended before: {name}"
            assert time.monotonic() < deadline, f"not within 120 s: {name}"
            time.sleep(0.1)
