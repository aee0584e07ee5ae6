"""How the learner's weights reach a host: through shared memory, or as one message per version.

Generators always map a file of their own host. On the learner's host that is the learner's own
file. On any other host one process holds a copy, and each version is sent to it once, however
many generators run there. The host verifies its checksum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Protocol

from monarch.actor import Actor, endpoint

from glasshouse.distributed.monarch.runtime import SPAWN_TIMEOUT, ActorProcesses, Host, ProcessDied
from glasshouse.distributed.monarch.shared_weights import CHECKSUM_BYTES, SharedWeights


class WeightSync(Protocol):
    """Brings weights to one host."""

    path: str
    """The file that generators on that host map."""

    def close(self) -> None:
        """Stop; no version follows."""


class SharedMemorySync:
    """For the learner's host: generators read the file that the learner writes."""

    def __init__(self, weights: SharedWeights) -> None:
        self.path = weights.path

    def close(self) -> None:
        """The backend closes the file."""


class MessageSync:
    """For any other host: one message per version to a process that holds a copy."""

    def __init__(self, host: Host, weights: SharedWeights, timeout: float) -> None:
        self.name, self.timeout = host.name, timeout
        self.processes = ActorProcesses.spawn(host, f"weights-{host.name}", WeightCopyActor)
        self.processes.wait_until_started(timeout)
        call = self.processes.actor.open.call(weights.numel, weights.slots)
        (self.path,) = self.processes.wait(call, timeout, SPAWN_TIMEOUT)

    def close(self) -> None:
        self.processes.kill()


def publish(weights: SharedWeights, version: int, syncs: Sequence[MessageSync]) -> dict[str, str]:
    """Send a version to all hosts at once; return why, for each host that did not get it."""
    raw, checksum = weights.read_bytes(version), weights.checksum(version)
    calls = [(sync, sync.processes.actor.write.call(version, checksum, raw)) for sync in syncs]
    failures: dict[str, str] = {}
    for sync, call in calls:
        try:
            sync.processes.wait(call, sync.timeout, SPAWN_TIMEOUT)
        except ProcessDied as error:
            failures[sync.name] = str(error)
    return failures


class WeightCopyActor(Actor):
    """Holds a host's copy of the weights."""

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
