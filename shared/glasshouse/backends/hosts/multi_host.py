"""Generators at home on several hosts.

Generator n lives on host n, round and round. When a host is lost, its generators wait for it while
those of the other hosts do the work; when it is back, they are too. The learner stays here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from glasshouse.backends.base import Event
from glasshouse.backends.hosts.opening import Hosts, open_hosts
from glasshouse.backends.monarch.backend import Monarch
from glasshouse.backends.monarch.runtime import Died, Place
from glasshouse.config import Config
from glasshouse.errors import RunError
from glasshouse.models import Policy

ASK_EVERY = 1.0
"""Seconds between two looks for a lost host."""


class Homes:
    """Where generator n is to be put now; blocks while its host is lost.

    Example: `Homes(open_hosts(config.hosts), patience=600, tell=event)(3)`
    """

    def __init__(self, hosts: Hosts, patience: float, tell: Callable[..., None]) -> None:
        self.hosts, self.patience, self.tell = hosts, patience, tell
        self.turn = threading.Lock()
        self.leaving = threading.Event()
        self.placed: dict[int, Any] = {}
        """The mesh that each generator was put on."""
        self.alone_since: float | None = None

    def __call__(self, number: int) -> Place:
        name = self.hosts.names[number % len(self.hosts.names)]
        with self.turn:
            self._look_after(name, number)
        while not self.leaving.is_set():
            with self.turn:
                lost = name not in self.hosts.meshes
                mesh = self.hosts.rejoin(name)
                if mesh is not None:
                    if lost:
                        self.tell("host", host=name, how="back", text=f"Host {name} is back.")
                    self.alone_since = None
                    self.placed[number] = mesh
                    return Place(mesh, name, local=False)
                self._give_up_when_alone(name)
            self.leaving.wait(ASK_EVERY)
        raise Died("the run ended")

    def _look_after(self, name: str, number: int) -> None:
        """A generator that asks again has died, or its host has: from here they look the same, and
        what is left of the connection is not to be trusted. The host is attached anew; others
        that were on it find it so."""
        if number in self.placed and self.hosts.meshes.get(name) is self.placed[number]:
            self.hosts.lose(name)
            self.tell("host", host=name, how="lost", generator=number,
                      text=f"Host {name} is lost, or generator {number} on it; the others go on.")  # fmt: skip

    def _give_up_when_alone(self, name: str) -> None:
        if self.hosts.meshes:
            self.alone_since = None
            return
        self.alone_since = self.alone_since or time.monotonic()
        if time.monotonic() - self.alone_since > self.patience:
            raise RunError(
                f"Every host is lost, {name} the last, and none came back within {self.patience:g} s "
                "(hosts.reconnect_timeout). Run the same command again to go on from the last checkpoint."
            )

    def leave(self) -> None:
        """Nobody waits for a host any more."""
        self.leaving.set()


class OnHosts(Monarch):
    """The Monarch placement with its generators on the hosts that the configuration names."""

    def __init__(self, policy: Policy, config: Config, event: Event) -> None:
        def warn(text: str) -> None:
            event("warning", text=text)

        self.hosts = open_hosts(config.hosts, warn)  # before anything else talks to Monarch
        self.homes = Homes(self.hosts, config.hosts.reconnect_timeout, self._note_later)
        super().__init__(policy, config, event, self.homes)

    def _note_later(self, kind: str, **what: Any) -> None:
        self._note(kind, **what)

    def close(self) -> None:
        self.homes.leave()
        super().close()
        self.hosts.close()
