"""The Monarch backend with its generators on several hosts.

Generator n runs on host n modulo the number of hosts. When a host is lost, its generators wait for
it while those of the other hosts do the work. The learner runs on the controller's machine.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.distributed.base import EventSink
from glasshouse.distributed.hosts.host_pool import HostPool
from glasshouse.distributed.monarch.backend import MonarchBackend
from glasshouse.distributed.monarch.runtime import Host, ProcessDied
from glasshouse.errors import RunError
from glasshouse.models.policy import Policy

RECONNECT_INTERVAL = 1.0
"""Seconds between two attempts to reach a lost host."""


class HostAssignment:
    """Assigns generator n to its host; blocks while that host is lost.

    Example: `HostAssignment(HostPool(config.hosts), 600, event)(3)`
    """

    def __init__(
        self,
        hosts: HostPool,
        reconnect_timeout: float,
        event: EventSink,
    ) -> None:
        self.hosts, self.reconnect_timeout, self.event = hosts, reconnect_timeout, event
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.meshes: dict[int, Any] = {}
        """The mesh on which each generator was last started."""
        self.all_lost_since: float | None = None

    def __call__(self, number: int) -> Host:
        name = self.hosts.names[number % len(self.hosts.names)]
        with self.lock:
            self._detach_after_failure(name, number)
        while not self.stopping.is_set():
            with self.lock:
                lost = name not in self.hosts.meshes
                mesh = self.hosts.reconnect(name)
                if mesh is not None:
                    if lost:
                        text = f"Host {name} is connected again."
                        self.event("host", host=name, status="reconnected", text=text)
                    self.all_lost_since = None
                    self.meshes[number] = mesh
                    return Host(mesh, name, is_local=False)
                self._check_reconnect_timeout(name)
            self.stopping.wait(RECONNECT_INTERVAL)
        raise ProcessDied("the run ended")

    def stop(self) -> None:
        """End all waiting for lost hosts."""
        self.stopping.set()

    def _detach_after_failure(self, name: str, number: int) -> None:
        """Detach the host of a generator that asks for its host a second time.

        Either the generator or its host has died; the controller cannot tell which, and the old
        connection may block. The next caller attaches the host again; the other generators of the
        host then find it attached.
        """
        if number in self.meshes and self.hosts.meshes.get(name) is self.meshes[number]:
            self.hosts.drop(name)
            text = f"Host {name}, or generator {number} on it, is lost; the others continue."
            self.event("host", host=name, status="lost", generator=number, text=text)

    def _check_reconnect_timeout(self, name: str) -> None:
        if self.hosts.meshes:
            self.all_lost_since = None
            return
        self.all_lost_since = self.all_lost_since or time.monotonic()
        if time.monotonic() - self.all_lost_since > self.reconnect_timeout:
            raise RunError(
                f"All hosts are lost ({name} was the last), and none came back within "
                f"{self.reconnect_timeout:g} s (hosts.reconnect_timeout). Run the same command again "
                "to resume from the last checkpoint."
            )


class MultiHostBackend(MonarchBackend):
    """The Monarch backend with its generators on the hosts of the section `hosts`."""

    def __init__(self, policy: Policy, config: Config, event: EventSink) -> None:
        def queue_event(kind: str, **details: Any) -> None:
            self._queue_event(kind, **details)

        self.hosts = HostPool(config.hosts)  # before any other use of Monarch
        self.assignment = HostAssignment(self.hosts, config.hosts.reconnect_timeout, queue_event)
        try:
            super().__init__(policy, config, event, self.assignment)
        except BaseException:
            self.hosts.close()
            raise

    def close(self) -> None:
        self.assignment.stop()
        super().close()
        self.hosts.close()
