"""Hosts on this machine: the machine itself, or local processes that act as hosts."""

from __future__ import annotations

import logging

from monarch.actor import HostMesh, this_host
from monarch.job import ProcessJob

from glasshouse.distributed.monarch_sockets import monarch_sockets_in_own_directory

logging.getLogger("monarch._src.job.job").setLevel(logging.WARNING)  # it logs every step


class LocalHostProvider:
    """This machine. Its actors end with the process meshes that hold them."""

    names: tuple[str, ...] = ("local",)

    def attach(self, name: str) -> HostMesh:
        with monarch_sockets_in_own_directory():
            return this_host()

    def release(self, name: str, mesh: HostMesh) -> None:
        """Nothing to end."""

    def forget(self, name: str) -> None:
        """This machine cannot be lost."""

    def close(self) -> None:
        """Nothing was started."""


class ProcessHostProvider:
    """Local processes that act as hosts, over Unix sockets.

    Each is a separate job, so that one can be killed and restarted.
    """

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
