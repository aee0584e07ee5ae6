"""Several machines on one: network namespaces, or loopback addresses where there are none.

    machine 1 ── veth ──┐
    machine 2 ── veth ──┤ a bridge, in its own namespace
    machine 3 ── veth ──┘

Namespaces need root and `ip`. Their names are unique to the process and removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Protocol


class Network(Protocol):
    """Machines 1 to `count`."""

    count: int

    def ip(self, machine: int) -> str: ...

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process on a machine."""


class LoopbackNetwork:
    """Machines that are only loopback addresses of this one; needs no root.

    Their links cannot be cut. The addresses depend on the process id, so that two test processes do
    not use the same ports.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def ip(self, machine: int) -> str:
        return f"127.87.{os.getpid() % 250}.{machine}"

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(command, text=True, **options)


class NamespaceNetwork:
    """Machines in network namespaces, at 10.87.0.1 and so on.

    Example:
        with NamespaceNetwork(2) as network:
            network.start(1, ["python", "-m", "glasshouse", "hosts", "check"]).wait()
            network.cut_link(2)
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.prefix = f"gh{os.getpid()}x"

    @staticmethod
    def why_unavailable() -> str:
        """Return why namespaces cannot be created on this machine; empty if they can."""
        if sys.platform != "linux" or not shutil.which("ip"):
            return "network namespaces need Linux and iproute2"
        name = f"gh{os.getpid()}probe"
        created = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        if created.returncode:
            return f"no network namespace can be created: {created.stderr.strip()}"
        linked = subprocess.run(
            ["ip", "-n", name, "link", "add", "end0", "type", "veth", "peer", "name", "end1"],
            capture_output=True, text=True,
        )  # fmt: skip
        subprocess.run(["ip", "netns", "del", name], check=True)
        return f"no veth pair can be created: {linked.stderr.strip()}" if linked.returncode else ""

    def __enter__(self) -> NamespaceNetwork:
        try:
            self._ip("netns", "add", self.bridge)
            self._ip("-n", self.bridge, "link", "add", "bridge0", "type", "bridge")
            self._ip("-n", self.bridge, "link", "set", "bridge0", "up")
            for machine in range(1, self.count + 1):
                name, link = self.namespace(machine), f"link{machine}"
                self._ip("netns", "add", name)
                self._ip("-n", self.bridge, "link", "add", link, "type", "veth",
                         "peer", "name", "eth0", "netns", name)  # fmt: skip
                self._ip("-n", self.bridge, "link", "set", link, "master", "bridge0", "up")
                self._ip("-n", name, "addr", "add", f"{self.ip(machine)}/24", "dev", "eth0")
                self._ip("-n", name, "link", "set", "eth0", "up")
                self._ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for name in (*map(self.namespace, range(1, self.count + 1)), self.bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @property
    def bridge(self) -> str:
        return f"{self.prefix}bridge"

    def namespace(self, machine: int) -> str:
        return f"{self.prefix}{machine}"

    def ip(self, machine: int) -> str:
        return f"10.87.0.{machine}"

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(machine), *command], text=True, **options
        )

    def cut_link(self, machine: int) -> None:
        """Take the machine's link down; connections are not closed."""
        self._ip("-n", self.bridge, "link", "set", f"link{machine}", "down")

    def restore_link(self, machine: int) -> None:
        self._ip("-n", self.bridge, "link", "set", f"link{machine}", "up")

    def listeners(self, machine: int) -> list[str]:
        """Return the TCP addresses at which processes of the machine listen."""
        output = subprocess.run(
            ["ip", "netns", "exec", self.namespace(machine), "ss", "-Hltn"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return [line.split()[3] for line in output.splitlines()]

    def pids(self, machine: int) -> list[int]:
        """Return the processes of a machine."""
        output = subprocess.run(
            ["ip", "netns", "pids", self.namespace(machine)], capture_output=True, text=True
        ).stdout
        return [int(pid) for pid in output.split()]

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)
