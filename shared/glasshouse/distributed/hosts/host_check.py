"""`glasshouse hosts check`: can processes run on each host, and how fast is the connection?"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from monarch.actor import Actor, endpoint

from glasshouse.distributed.hosts.host_pool import HostPool

MEGABYTES = 32
START_TIMEOUT = 180.0
"""Seconds that a process may take to start on a host."""


class ProbeActor(Actor):
    """Runs on the host in place of a generator."""

    @endpoint
    def software(self) -> dict[str, str]:
        return installed_software()

    @endpoint
    def receive(self, data: bytes) -> int:
        return len(data)


def installed_software() -> dict[str, str]:
    """Return the versions that must be equal on all hosts for bitwise equal results, and the cores."""
    versions = {name: version(name) for name in ("glasshouse", "torch", "torchmonarch")}
    cores = str(len(os.sched_getaffinity(0)))
    return {"cores": cores, "python": platform.python_version(), **versions}


def check_hosts(hosts: HostPool) -> Iterator[str]:
    """Start a process on each host, measure the connection, end the process; yield sentences."""

    def seconds(endpoint: Any, *arguments: object) -> float:
        started = time.perf_counter()
        endpoint.call_one(*arguments).get(START_TIMEOUT)
        return time.perf_counter() - started

    own = installed_software()
    for name, mesh in hosts.meshes.items():
        processes = mesh.spawn_procs(per_host={"procs": 1}, name="check")
        try:
            actor: Any = processes.spawn("probe", ProbeActor)
            start = seconds(actor.software)
            software = actor.software.call_one().get(START_TIMEOUT)
            trip = min(seconds(actor.receive, b"") for _ in range(20))
            rate = MEGABYTES / seconds(actor.receive, bytes(MEGABYTES * 1_000_000))
        finally:
            processes.stop().get(START_TIMEOUT)
        yield (
            f"{name}: {software.pop('cores')} cores, a process started in {start:.1f} s, round trip "
            f"{trip * 1000:.1f} ms, {rate:.0f} MB/s to it."
        )
        for package, other in software.items():
            if other != own[package]:
                yield (
                    f"{name} has {package} {other}, this machine {own[package]}: results may differ in "
                    "bits."
                )
