"""Weights reach several hosts through each other; a host that dies takes no other with it.

    python -m proofs.weight_tree [--hosts 6] [--megabytes 4]                              (2 minutes)

Starts one process per host on this machine, sends versions of the weights, kills hosts in between, and
compares what every other host holds, bit for bit. Prints the seconds of each round.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import torch

from glasshouse.backends.monarch.runtime import Host, local_host
from glasshouse.backends.monarch.shared_weights import SharedWeights
from glasshouse.backends.monarch.weight_sync import MessageSync, publish


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=4)
    options = parser.parse_args()
    numel = options.megabytes * 250_000
    weights, mesh = SharedWeights.create(numel), local_host().mesh
    syncs = [MessageSync(Host(mesh, f"host-{n}"), weights, 240) for n in range(options.hosts)]
    try:
        send(1, weights, syncs, "all hosts alive")
        passes_on, last = syncs[0], syncs[1]
        kill(last)
        syncs = send(2, weights, syncs, f"{last.name}, behind {passes_on.name}, was killed")
        kill(passes_on)
        syncs = send(3, weights, syncs, f"{passes_on.name}, which passes weights on, was killed")
        send(4, weights, syncs, "the remaining hosts")
    finally:
        for sync in syncs:
            sync.close()
    print(f"all holds: {options.hosts} hosts, two killed, every other one bitwise equal")
    return 0


def kill(sync: MessageSync) -> None:
    os.kill(sync.processes.pids[0], signal.SIGKILL)


def send(
    version: int, weights: SharedWeights, syncs: list[MessageSync], case: str
) -> list[MessageSync]:
    """Publish a version; return the hosts that live, each of which must hold it."""
    expected = [torch.randn(weights.numel)]
    weights.write(version, expected)
    started = time.perf_counter()
    failures = publish(weights, version, syncs)
    print(f"version {version}, {case}: {time.perf_counter() - started:.2f} s; failed: {failures}")
    alive = [sync for sync in syncs if not sync.processes.has_exited]
    assert set(failures) == {sync.name for sync in syncs} - {sync.name for sync in alive}
    for sync in alive:
        copy = SharedWeights.open(sync.path, weights.numel)
        received = [torch.zeros(weights.numel)]
        copy.read(version, received)
        assert received[0].equal(expected[0]), sync.name
        assert copy.checksum(version) == weights.checksum(version), sync.name
        copy.close()
    return alive


if __name__ == "__main__":
    sys.exit(main())
