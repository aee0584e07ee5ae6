"""`glasshouse hosts check`: can processes run on each host, and how fast is the connection?"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from monarch.actor import Actor, HostMesh, endpoint
from rich.table import Table

from glasshouse.distributed.hosts.host_pool import HostPool

ROUND_TRIPS = 20
START_TIMEOUT = 180.0
"""Seconds that a process may take to start on a host."""
COLUMNS = ("host", "cores", "start, s", "round trip, ms", "send, MB/s", "receive, MB/s")


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
    """Return the versions that must be equal on all hosts for bitwise equal results."""
    versions = {"python": platform.python_version(), "cores": str(len(os.sched_getaffinity(0)))}
    for package in ("glasshouse", "torch", "torchmonarch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def check_hosts(hosts: HostPool, megabytes: int) -> tuple[Table, list[str]]:
    """Measure every host; return a table, and a sentence per package that differs from this machine's."""
    table = Table(title=f"hosts: {len(hosts.meshes)}", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "host" else "right", no_wrap=True)
    own, differences = installed_software(), list[str]()
    for name, mesh in hosts.meshes.items():
        software, numbers = _measure_host(mesh, megabytes)
        table.add_row(name, software.pop("cores"), *numbers)
        differences += [
            f"{name} has {package} {other}, this machine {own[package]}: results may differ in bits."
            for package, other in software.items()
            if other != own[package]
        ]
    return table, differences


def _measure_host(mesh: HostMesh, megabytes: int) -> tuple[dict[str, str], list[str]]:
    """Start a process on the host, measure the connection, and end the process."""
    size = megabytes * 1_000_000
    started = time.perf_counter()
    processes = mesh.spawn_procs(per_host={"procs": 1}, name="check")
    try:
        actor: Any = processes.spawn("probe", ProbeActor)
        software = actor.software.call_one().get(START_TIMEOUT)
        start = time.perf_counter() - started
        trips = [_seconds(lambda: actor.receive.call_one(b"").get()) for _ in range(ROUND_TRIPS)]
        send = _seconds(lambda: actor.receive.call_one(bytes(size)).get())
        receive = _seconds(lambda: actor.send.call_one(size).get())
    finally:
        processes.stop().get(START_TIMEOUT)
    trip = statistics.median(trips) * 1000
    rates = [f"{megabytes / seconds:.0f}" for seconds in (send, receive)]
    return software, [f"{start:.1f}", f"{trip:.1f}", *rates]


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
