"""However a Monarch run ends, none of its processes remains. proofs/monarch_runs.py times it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("monarch")

from proofs.monarch_runs import start_endless_run, wait_for_two_steps
from proofs.processes import wait_for_exit


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, subprocess.Popen[str]]]:
    """Two runs that start at the same time."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {out: start_endless_run(out) for out in (folder / "a", folder / "b")}
    yield runs
    for process in runs.values():
        process.kill()
        process.communicate()


def test_ctrl_c_ends_the_run_and_all_its_processes(runs: dict[Path, subprocess.Popen[str]]) -> None:
    out, process = next(iter(runs.items()))
    pids = wait_for_two_steps(out, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert wait_for_exit(pids)
    summary = json.loads((out / "results" / "summary.json").read_text())
    assert Path(summary["checkpoint"], "model.safetensors").is_file()
    assert "fault" not in (out / "results" / "events.jsonl").read_text()


def test_a_killed_controller_leaves_no_process_and_no_file_even_if_one_is_stopped(
    runs: dict[Path, subprocess.Popen[str]],
) -> None:
    out, process = list(runs.items())[1]
    pids = wait_for_two_steps(out, process)
    before = set(os.listdir("/dev/shm"))
    os.kill(pids[0], signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=120)
    assert wait_for_exit(pids)
    remaining = {name for name in os.listdir("/dev/shm") if name.startswith("glasshouse")}
    assert remaining <= before
