"""Are the hosts there, do they run our code, and how fast is the way to them?"""

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

from glasshouse.backends.hosts.opening import Hosts

CALLS = 20
STARTED_WITHIN = 180.0
"""Seconds that a process of ours may take to start on a host."""


class Probe(Actor):
    """Answers; stands in for a generator."""

    @endpoint
    def about(self) -> dict[str, str]:
        return software()

    @endpoint
    def take(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def give(self, size: int) -> bytes:
        return bytes(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found out about one host."""

    name: str
    software: dict[str, str]
    start: float
    """Seconds until a process of ours answers."""
    round_trip: float
    """Seconds, the median of 20."""
    there: float
    """Megabytes a second to it."""
    back: float
    """Megabytes a second from it."""


def software() -> dict[str, str]:
    """What must be alike on all hosts for a run to be a function of its configuration."""
    found = {"cores": str(len(os.sched_getaffinity(0))), "python": platform.python_version()}
    for package in ("glasshouse", "torch", "torchmonarch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def check_hosts(hosts: Hosts, megabytes: int = 32) -> list[Found]:
    return [check_host(name, mesh, megabytes) for name, mesh in hosts.meshes.items()]


def check_host(name: str, mesh: HostMesh, megabytes: int = 32, probe: Any = Probe) -> Found:
    """Start a process on the host, talk to it, end it."""
    size = megabytes * 1_000_000
    begun = time.perf_counter()
    processes = mesh.spawn_procs(per_host={"procs": 1}, name="check")
    try:
        actor = processes.spawn("probe", probe)
        about = actor.about.call_one().get(STARTED_WITHIN)
        start = time.perf_counter() - begun
        trips = [_seconds(lambda: actor.take.call_one(b"").get()) for _ in range(CALLS)]
        there = _seconds(lambda: actor.take.call_one(bytes(size)).get())
        back = _seconds(lambda: actor.give.call_one(size).get())
    finally:
        processes.stop().get(STARTED_WITHIN)
    return Found(
        name=name, software=about, start=start, round_trip=statistics.median(trips),
        there=megabytes / there, back=megabytes / back,
    )  # fmt: skip


def _seconds(what: Callable[[], object]) -> float:
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun


def table(found: list[Found]) -> Table:
    shown = Table(title=f"{len(found)} host{'s' * (len(found) != 1)}", title_justify="left")
    for column in ("host", "cores", "start, s", "round trip, ms", "MB/s there", "MB/s back"):
        shown.add_column(column, justify="left" if column == "host" else "right", no_wrap=True)
    for one in found:
        shown.add_row(
            one.name, one.software["cores"], f"{one.start:.1f}", f"{one.round_trip * 1000:.1f}",
            f"{one.there:.0f}", f"{one.back:.0f}",
        )  # fmt: skip
    return shown


def differences(found: list[Found]) -> list[str]:
    """Sentences on software that is not what it is here: bits may differ then."""
    here = software()
    return [
        f"{one.name} has {package} {theirs}, this machine {here[package]}: results may differ in bits."
        for one in found
        for package, theirs in one.software.items()
        if package != "cores" and theirs != here[package]
    ]
