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

from glasshouse.distributed.monarch.actors import SharedWeights, StaleWeights

CONTROLLER = """
import time
from glasshouse.config.schema import Config
from glasshouse.distributed.monarch.processes import ActorProcesses, local_host
from glasshouse.distributed.monarch.actors import SharedWeights, WeightCopyActor
import torch

weights = SharedWeights.create(3)
weights.write(4, [torch.tensor([1.0, 2.0, 3.0])])
copy = ActorProcesses(local_host(), "copy", WeightCopyActor, Config())
(layout,) = copy.start(3, 2, torch.float32)
failures = weights.send(4, {"copy": copy})
received = SharedWeights.open(layout)
print(failures, received.find(4)["checksum"] == weights.find(4)["checksum"], received.numbers[0].tolist(), flush=True)
print(*copy.pids, flush=True)
time.sleep(600)
"""
"""Starts one process, sends it weights, and waits; both map a file of shared weights."""


@pytest.mark.parametrize("slots", [2, 5])
def test_shared_weights_hold_as_many_versions_as_slots(slots: int) -> None:
    writer = SharedWeights.create(5, slots)
    reader = SharedWeights.open(writer.layout)
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
    for version in (3, newest + 1):
        with pytest.raises(StaleWeights, match=f"Version {version} "):
            reader.read(version, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_rounded_and_compared_with_those_that_were_written(dtype: torch.dtype) -> None:
    """Also if the file itself was damaged, where the version has a checksum."""
    exact = [torch.randn(3, 4), torch.randn(5)]
    weights = SharedWeights.create(17, dtype=dtype)
    tensors = [torch.zeros(3, 4), torch.zeros(5)]
    for version, verify in enumerate((True, False)):
        weights.write(version, exact, verify=verify)
        weights.read(version, tensors)
        assert all(a.equal(b.to(dtype).float()) for a, b in zip(tensors, exact, strict=True))
        assert weights.matches(version, tensors)
        assert weights.matches(version, exact)
        tensors[1][2] += 1
        assert not weights.matches(version, tensors)
    weights.numbers[0, 7] += 1
    weights.read(0, tensors)
    assert not weights.matches(0, tensors)


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
