"""How the learner's weights reach a host: through memory it shares, or as one message to it.

Generators only ever map a file of their own host. On the learner's host that is the learner's own;
on any other, a mailbox process holds one, and each version is sent to it once, however many
generators are there.
"""

from __future__ import annotations

import os
from typing import Protocol

from monarch.actor import Actor, endpoint

from glasshouse.backends.monarch.runtime import Place, Processes
from glasshouse.backends.monarch.shared_weights import WeightMap


class Sync(Protocol):
    """A way for weights to reach one host."""

    path: str
    """What generators there map."""

    def publish(self, version: int) -> int:
        """Bring a version over; returns the bytes that travelled."""

    def end(self) -> None:
        """Nothing more will be sent."""


class SharedMemory:
    """The learner wrote it where everybody on this host reads it."""

    def __init__(self, weights: WeightMap) -> None:
        self.path = weights.path

    def publish(self, version: int) -> int:
        return 0

    def end(self) -> None:
        """Whoever made the map closes it."""


class Messages:
    """One message a version to a mailbox on the other host."""

    def __init__(self, place: Place, weights: WeightMap, timeout: float) -> None:
        self.weights, self.timeout = weights, timeout
        self.mailbox = Processes.spawn(place, f"mailbox-{place.name}", MailboxActor)
        self.mailbox.answer(timeout)
        call = self.mailbox.actor.open.call(weights.numbers)
        (self.path,) = self.mailbox.wait(call, timeout)

    def publish(self, version: int) -> int:
        raw, digest = self.weights.raw(version), self.weights.digest(version)
        self.mailbox.wait(self.mailbox.actor.put.call(version, digest, raw), self.timeout)
        return len(raw)

    def end(self) -> None:
        self.mailbox.end()


class MailboxActor(Actor):
    """Holds a host's copy of the weights."""

    weights: WeightMap

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def open(self, numbers: int) -> str:
        self.weights = WeightMap.create(numbers)
        return self.weights.path

    @endpoint
    def put(self, version: int, digest: bytes, raw: bytes) -> None:
        self.weights.put(version, digest, raw)
