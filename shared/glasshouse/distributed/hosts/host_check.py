"""`glasshouse hosts check`: can processes run on each host, and how fast is the connection?"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from monarch.actor import Actor, HostMesh, endpoint
from rich.table import Table

from glasshouse.distributed.hosts.host_pool import HostPool

ROUND_TRIPS = 20
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The measurements of one host."""

    name: str
    software: dict[str, str]
    start_seconds: float
    """Until a new process answers."""
    round_trip_seconds: float
    """Median of 20."""
    send_rate: float
    """Megabytes per second to the host."""
    receive_rate: float
    """Megabytes per second from the host."""


def installed_software() -> dict[str, str]:
    """Return the versions that must be equal on all hosts for bitwise equal results."""
    versions = {"cores": str(len(os.sched_getaffinity(0))), "python": platform.python_version()}
    for package in ("glasshouse", "torch", "torchmonarch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def measure_hosts(hosts: HostPool, megabytes: int = 32) -> list[HostReport]:
    return [measure_host(name, mesh, megabytes) for name, mesh in hosts.meshes.items()]


def measure_host(name: str, mesh: HostMesh, megabytes: int) -> HostReport:
    """Start a process on the host, measure the connection, and end the process."""
    size = megabytes * 1_000_000
    started = time.perf_counter()
    processes = mesh.spawn_procs(per_host={"procs": 1}, name="check")
    try:
        actor: Any = processes.spawn("probe", ProbeActor)
        software = actor.software.call_one().get(START_TIMEOUT)
        start_seconds = time.perf_counter() - started
        trips = [_seconds(lambda: actor.receive.call_one(b"").get()) for _ in range(ROUND_TRIPS)]
        send_seconds = _seconds(lambda: actor.receive.call_one(bytes(size)).get())
        receive_seconds = _seconds(lambda: actor.send.call_one(size).get())
    finally:
        processes.stop().get(START_TIMEOUT)
    return HostReport(
        name=name, software=software, start_seconds=start_seconds,
        round_trip_seconds=statistics.median(trips),
        send_rate=megabytes / send_seconds, receive_rate=megabytes / receive_seconds,
    )  # fmt: skip


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def host_table(reports: list[HostReport]) -> Table:
    """Format the reports for the terminal."""
    table = Table(title=f"{len(reports)} host{'s' * (len(reports) != 1)}", title_justify="left")
    for column in ("host", "cores", "start, s", "round trip, ms", "send, MB/s", "receive, MB/s"):
        table.add_column(column, justify="left" if column == "host" else "right", no_wrap=True)
    for report in reports:
        table.add_row(
            report.name, report.software["cores"], f"{report.start_seconds:.1f}",
            f"{report.round_trip_seconds * 1000:.1f}", f"{report.send_rate:.0f}",
            f"{report.receive_rate:.0f}",
        )  # fmt: skip
    return table


def version_differences(reports: list[HostReport]) -> list[str]:
    """Return a sentence per package whose version differs from this machine's."""
    own = installed_software()
    return [
        f"{report.name} has {package} {other}, this machine {own[package]}: results may differ in bits."
        for report in reports
        for package, other in report.software.items()
        if package != "cores" and other != own[package]
    ]
