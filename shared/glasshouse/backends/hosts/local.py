"""Hosts on this machine: itself, or processes that play hosts."""

from __future__ import annotations

import logging

from monarch.actor import HostMesh, this_host
from monarch.job import ProcessJob

logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)  # it tells its every step


class ThisHost:
    """This machine. Its actors end with the process meshes that hold them."""

    names: tuple[str, ...] = ("this",)

    def attach(self, name: str) -> HostMesh:
        return this_host()

    def release(self, name: str, mesh: HostMesh) -> None:
        """The machine stays."""

    def forget(self, name: str) -> None:
        """It cannot be lost: we are on it."""

    def close(self) -> None:
        """Nothing was started."""


class Processes:
    """Local processes that play hosts, over Unix sockets; each a job of its own, so that one can
    be killed and started anew."""

    def __init__(self, count: int) -> None:
        self.names = tuple(f"host{i}" for i in range(count))
        self.jobs: dict[str, ProcessJob] = {}

    def attach(self, name: str) -> HostMesh:
        job = self.jobs[name] = ProcessJob({name: 1})
        mesh: HostMesh = getattr(job.state(cached_path=None), name)
        return mesh

    def release(self, name: str, mesh: HostMesh) -> None:
        self.forget(name)

    def forget(self, name: str) -> None:
        job = self.jobs.pop(name, None)
        if job is not None:
            job.kill()

    def close(self) -> None:
        for name in list(self.jobs):
            self.forget(name)
