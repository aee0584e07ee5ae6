"""Waiting for processes and conditions, for proofs and tests."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def wait_until(condition: Callable[[], object], timeout: float = 120, poll: float = 0.01) -> None:
    """Wait until the condition holds; raise `AssertionError` after the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {timeout:g} s"
        time.sleep(poll)


def wait_for_exit(pids: Sequence[int], timeout: float = 60) -> bool:
    """Wait until all processes have ended; return whether they did within the timeout."""
    deadline = time.monotonic() + timeout
    while any(_is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def child_pids(pid: int) -> list[int]:
    """Return the children of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def stop_process(process: subprocess.Popen[str], timeout: float = 15) -> int:
    """Terminate a process, kill it after the timeout, and return its exit code."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
