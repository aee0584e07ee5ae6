"""However a Monarch run ends, none of its processes outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("monarch")

from glasshouse.backends.monarch.runtime import gone

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [
    sys.executable, "-m", "glasshouse", "train", f"model={ROOT / 'models' / 'mock'}",
    "steps=100000", "data.groups_per_step=4", "generate.group_size=4", "generate.max_tokens=32",
    "generate.chunk_size=2", "evaluate.problems=0", "backend=monarch", "monarch.generators=1",
]  # fmt: skip


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()]


def training(out: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A run in a session of its own, as a terminal would have it, that has taken two steps."""
    process = subprocess.Popen(
        [*COMMAND, f"out={out}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log, deadline = out / "results" / "metrics.jsonl", time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = children(process.pid)
    assert len(pids) == 2  # a generator and a learner
    return process, pids


def test_ctrl_c_ends_the_run_and_every_process(tmp_path: Path) -> None:
    process, pids = training(tmp_path / "a")
    os.killpg(process.pid, signal.SIGINT)  # what a terminal sends
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert gone(pids, within=1)
    summary = json.loads((tmp_path / "a" / "results" / "summary.json").read_text())
    assert Path(summary["checkpoint"], "model.safetensors").is_file()
    assert "fault" not in (tmp_path / "a" / "results" / "events.jsonl").read_text()


def test_a_killed_controller_leaves_nothing_behind_even_if_stopped(tmp_path: Path) -> None:
    process, pids = training(tmp_path / "a")
    before = set(os.listdir("/dev/shm"))
    os.kill(pids[0], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=60)
    assert gone(pids, within=5)
    assert set(os.listdir("/dev/shm")) <= before
