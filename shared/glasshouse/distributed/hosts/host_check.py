"""`glasshouse hosts check`: can processes run on each host, and how fast is the connection?"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from monarch.actor import Actor, endpoint

from glasshouse.distributed.hosts.host_pool import HostPool

ROUND_TRIPS, MEGABYTES = 20, 32
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

    @endpoint
    def send(self, size: int) -> bytes:
        return bytes(size)


def installed_software() -> dict[str, str]:
    """Return the versions that must be equal on all hosts for bitwise equal results, and the cores."""
    versions = {"cores": str(len(os.sched_getaffinity(0))), "python": platform.python_version()}
    for package in ("glasshouse", "torch", "torchmonarch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def check_hosts(hosts: HostPool) -> Iterator[str]:
    """Start a process on each host, measure the connection, end the process; yield sentences."""

    def seconds(endpoint: Any, argument: object) -> float:
        started = time.perf_counter()
        endpoint.call_one(argument).get(START_TIMEOUT)
        return time.perf_counter() - started

    own, size = installed_software(), MEGABYTES * 1_000_000
    for name, mesh in hosts.meshes.items():
        started = time.perf_counter()
        processes = mesh.spawn_procs(per_host={"procs": 1}, name="check")
        try:
            actor: Any = processes.spawn("probe", ProbeActor)
            software = actor.software.call_one().get(START_TIMEOUT)
            start = time.perf_counter() - started
            trips = [seconds(actor.receive, b"") for _ in range(ROUND_TRIPS)]
            send = MEGABYTES / seconds(actor.receive, bytes(size))
            receive = MEGABYTES / seconds(actor.send, size)
        finally:
            processes.stop().get(START_TIMEOUT)
        yield (
            f"{name}: {software.pop('cores')} cores, a process started in {start:.1f} s, round trip "
            f"{statistics.median(trips) * 1000:.1f} ms, {send:.0f} MB/s to it, {receive:.0f} MB/s from it."
        )
        for package, other in software.items():
            if other != own[package]:
                yield (
                    f"{name} has {package} {other}, this machine {own[package]}: results may differ in "
                    "bits."
                )
