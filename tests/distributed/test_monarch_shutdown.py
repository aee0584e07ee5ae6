"""A killed controller leaves nothing. proofs/monarch_runs.py kills whole runs, and times it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("monarch")

from proofs.processes import wait_for_exit

CONTROLLER = """
import time
from glasshouse.distributed.monarch.runtime import local_host
from glasshouse.distributed.monarch.shared_weights import SharedWeights
from glasshouse.distributed.monarch.weight_copies import WeightCopy

sync = WeightCopy(local_host(), SharedWeights.create(1000), 240)
print(*sync.processes.pids, flush=True)
time.sleep(600)
"""
"""Starts one process; both map a file of shared weights."""


def test_a_killed_controller_leaves_no_process_and_no_file_even_if_one_is_stopped() -> None:
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", CONTROLLER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 1
        os.kill(pids[0], signal.SIGSTOP)
        process.kill()
        process.wait(60)
    assert wait_for_exit(pids)
    remaining = {name for name in os.listdir("/dev/shm") if name.startswith("glasshouse")}
    assert remaining <= before
