"""How the learner's weights reach another host: one message per version.

Generators always map a file of their own host. On the learner's host that is the learner's own
file. On any other host one process holds a copy, and each version is sent to it once, however
many generators run there. The host verifies its checksum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection

from monarch.actor import Actor, endpoint

from glasshouse.distributed.monarch.runtime import SPAWN_TIMEOUT, ActorProcesses, Host, ProcessDied
from glasshouse.distributed.monarch.shared_weights import CHECKSUM_BYTES, SharedWeights


class WeightCopy:
    """A process on another host that holds a copy of the weights, in a file that generators there map."""

    def __init__(self, host: Host, weights: SharedWeights, timeout: float) -> None:
        self.name, self.timeout = host.name, timeout
        self.processes = ActorProcesses.spawn(host, f"weights-{host.name}", WeightCopyActor)
        self.processes.wait_until_started(timeout)
        call = self.processes.actor.open.call(weights.numel, weights.slots)
        (self.path,) = self.processes.wait(call, timeout, SPAWN_TIMEOUT)

    def close(self) -> None:
        self.processes.kill()


def send_weights(
    weights: SharedWeights, version: int, copies: Collection[WeightCopy]
) -> dict[str, str]:
    """Send a version to all hosts at once; return why, for each host that did not get it."""
    raw, checksum = weights.read_bytes(version), weights.checksum(version)
    calls = [(copy, copy.processes.actor.write.call(version, checksum, raw)) for copy in copies]
    failures: dict[str, str] = {}
    for copy, call in calls:
        try:
            copy.processes.wait(call, copy.timeout, SPAWN_TIMEOUT)
        except ProcessDied as error:
            failures[copy.name] = str(error)
    return failures


class WeightCopyActor(Actor):
    weights: SharedWeights

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, numel: int, slots: int) -> str:
        self.weights = SharedWeights.create(numel, slots)
        return self.weights.path

    @endpoint
    def write(self, version: int, checksum: bytes, raw: bytes) -> None:
        if hashlib.blake2b(raw, digest_size=CHECKSUM_BYTES).digest() != checksum:
            raise ValueError(f"Version {version} of the weights was damaged on its way.")
        self.weights.write_bytes(version, checksum, raw)
