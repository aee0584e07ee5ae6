"""How the learner's weights reach a host: through shared memory, or as one message per version.

Generators always map a file of their own host. On the learner's host that is the learner's own
file. On any other host one process holds a copy, and each version is sent to it once, however
many generators run there. Hosts pass a version on to each other, so that the number of hosts that
have it doubles from send to send; each of them verifies its checksum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from monarch.actor import Actor, endpoint

from glasshouse.backends.monarch.runtime import SPAWN_TIMEOUT, ActorProcesses, Host, ProcessDied
from glasshouse.backends.monarch.shared_weights import CHECKSUM_BYTES, SharedWeights

T = TypeVar("T")


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
    """Bring a version to all hosts; return why, for each host that did not get it.

    A host that fails takes the hosts behind it in the tree with it: these get their own message.
    """
    raw, checksum = weights.read_bytes(version), weights.checksum(version)

    def send(receiver: MessageSync, further: Sequence[MessageSync]) -> Any:
        actors = [(sync.name, sync.processes.actor) for sync in further]
        return receiver.processes.actor.write.call(version, checksum, raw, actors)

    calls = [(branch, send(branch[0], branch[1:])) for branch in divide_into_branches(syncs)]
    failures: dict[str, str] = {}
    for branch, call in calls:
        again: Sequence[MessageSync] = ()
        try:
            (failed,) = branch[0].processes.wait(call, branch[0].timeout, SPAWN_TIMEOUT)
            again = [sync for sync in branch if sync.name in failed]
        except ProcessDied as error:
            failures[branch[0].name] = str(error)
            again = branch[1:]
        for sync in again:
            try:
                sync.processes.wait(send(sync, ()), sync.timeout, SPAWN_TIMEOUT)
            except ProcessDied as error:
                failures[sync.name] = str(error)
    return failures


def divide_into_branches(hosts: Sequence[T]) -> list[Sequence[T]]:
    """Divide hosts among the sends of one sender: the first host of a branch passes the weights on to the
    others in it. The first branch is half of the hosts, the next half of the rest, and so on: all
    hosts are reached after as many sends in a row as the number of hosts has binary digits.

    Example: `divide_into_branches([1, 2, 3, 4, 5])` is `[[1, 2, 3], [4], [5]]`
    """
    branches = []
    while hosts:
        half = (len(hosts) + 1) // 2
        branches.append(hosts[:half])
        hosts = hosts[half:]
    return branches


class WeightCopyActor(Actor):
    """Holds a host's copy of the weights."""

    weights: SharedWeights

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def open(self, numel: int, slots: int) -> str:
        self.weights = SharedWeights.create(numel, slots)
        return self.weights.path

    @endpoint
    async def write(
        self, version: int, checksum: bytes, raw: bytes, further: list[tuple[str, Any]]
    ) -> list[str]:
        """Write a version and pass it on; return the names of the hosts that did not get it."""
        if hashlib.blake2b(raw, digest_size=CHECKSUM_BYTES).digest() != checksum:
            raise ValueError(f"Version {version} of the weights was damaged on its way.")
        calls = []
        for branch in divide_into_branches(further):
            call = branch[0][1].write.call_one(version, checksum, raw, list(branch[1:]))
            calls.append(([name for name, _ in branch], call))
        self.weights.write_bytes(version, checksum, raw)
        failed = []
        for names, call in calls:
            try:
                failed += await call
            except Exception:  # Monarch raises different types for the same cause
                failed += names
        return failed
