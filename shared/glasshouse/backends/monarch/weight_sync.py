"""How the learner's weights reach a host: through shared memory, or as one message per version.

Generators always map a file of their own host. On the learner's host that is the learner's own
file. On any other host one process holds a copy, and each version is sent to it once, however
many generators run there.
"""

from __future__ import annotations

import os
from typing import Protocol

from monarch.actor import Actor, endpoint

from glasshouse.backends.monarch.runtime import ActorProcesses, Host
from glasshouse.backends.monarch.shared_weights import SharedWeights


class WeightSync(Protocol):
    """Brings weights to one host."""

    path: str
    """The file that generators on that host map."""

    def publish(self, version: int) -> int:
        """Bring a version to the host; return the number of bytes sent."""

    def close(self) -> None:
        """Stop; no version follows."""


class SharedMemorySync:
    """For the learner's host: generators read the file that the learner writes."""

    def __init__(self, weights: SharedWeights) -> None:
        self.path = weights.path

    def publish(self, version: int) -> int:
        return 0

    def close(self) -> None:
        """The backend closes the file."""


class MessageSync:
    """For any other host: one message per version to a process that holds a copy."""

    def __init__(self, host: Host, weights: SharedWeights, timeout: float) -> None:
        self.weights, self.timeout = weights, timeout
        self.processes = ActorProcesses.spawn(host, f"weights-{host.name}", WeightCopyActor)
        self.processes.wait_until_started(timeout)
        call = self.processes.actor.open.call(weights.numel, weights.slots)
        (self.path,) = self.processes.wait(call, timeout)

    def publish(self, version: int) -> int:
        raw, checksum = self.weights.read_bytes(version), self.weights.checksum(version)
        self.processes.wait(self.processes.actor.write.call(version, checksum, raw), self.timeout)
        return len(raw)

    def close(self) -> None:
        self.processes.kill()


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
        self.weights.write_bytes(version, checksum, raw)
