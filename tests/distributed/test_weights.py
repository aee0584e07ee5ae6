"""The shared weights, and what a killed controller leaves: nothing. proofs/monarch_runs.py kills whole runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

pytest.importorskip("monarch")

from proofs.processes import wait_for_exit

from glasshouse.distributed.monarch.actors import SharedWeights, StaleWeights, checksum_tensors

CONTROLLER = """
import time
from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.processes import ActorProcesses, local_host
from glasshouse.distributed.monarch.actors import SharedWeights, WeightCopyActor
import torch

weights = SharedWeights.create(3)
weights.write(4, [torch.tensor([1.0, 2.0, 3.0])])
copy = ActorProcesses(local_host(), "copy", WeightCopyActor, Config())
(path,) = copy.start(3, 2)
failures = weights.send(4, {"copy": copy})
received = SharedWeights.open(path, 3)
print(failures, received.checksum(4) == weights.checksum(4), received.numbers[0].tolist(), flush=True)
print(*copy.pids, flush=True)
time.sleep(600)
"""
"""Starts one process, sends it weights, and waits; both map a file of shared weights."""


@pytest.mark.parametrize("slots", [2, 5])
def test_shared_weights_hold_as_many_versions_as_slots(slots: int) -> None:
    writer = SharedWeights.create(5, slots)
    reader = SharedWeights.open(writer.path, 5)
    assert reader.slots == slots
    newest = slots + 3
    weights = {
        v: [torch.full((2, 2), float(v)), torch.full((1,), v + 0.5)] for v in range(newest + 1)
    }
    tensors = [torch.zeros(2, 2), torch.zeros(1)]
    for version in range(newest + 1):
        writer.write(version, weights[version])
    assert reader.versions() == list(range(4, newest + 1))
    for version in reader.versions():
        reader.read(version, tensors)
        assert all(a.equal(b) for a, b in zip(tensors, weights[version], strict=True))
        expected = checksum_tensors(weights[version])
        assert reader.checksum(version) == expected == checksum_tensors(tensors)
    for version in (3, newest + 1):
        with pytest.raises(StaleWeights, match=f"Version {version} "):
            reader.read(version, tensors)


def test_a_copy_gets_equal_bits_and_ends_with_its_controller_even_if_it_is_stopped() -> None:
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", CONTROLLER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "{} True [1.0, 2.0, 3.0]\n"
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 1
        os.kill(pids[0], signal.SIGSTOP)
        process.kill()
        process.wait(60)
    assert wait_for_exit(pids)
    remaining = {name for name in os.listdir("/dev/shm") if name.startswith("glasshouse")}
    assert remaining <= before
