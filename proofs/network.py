"""Machines that are not there: network namespaces joined by veth pairs at a bridge, for tests.

    machine 1 ── veth ──┐
    machine 2 ── veth ──┤ bridge, in a namespace of its own
    machine 3 ── veth ──┘

Needs root and `ip`. Names are unique to the process and removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


class Network:
    """Machines 1 to `count`, at 10.87.0.1 and so on.

    Example:
        with Network(2) as network:
            network.start(1, ["python", "-m", "glasshouse", "hosts", "check"]).wait()
            network.cut(2)
    """

    def __init__(self, count: int, tag: str = "") -> None:
        self.count = count
        self.tag = tag or f"gh{os.getpid()}x"

    @staticmethod
    def missing() -> str:
        """Why there can be no such network here; empty if there can."""
        if sys.platform != "linux" or not shutil.which("ip"):
            return "network namespaces need Linux and iproute2"
        name = f"gh{os.getpid()}probe"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        if made.returncode:
            return f"no network namespace can be made here: {made.stderr.strip()}"
        linked = subprocess.run(
            ["ip", "-n", name, "link", "add", "end0", "type", "veth", "peer", "name", "end1"],
            capture_output=True, text=True,
        )  # fmt: skip
        subprocess.run(["ip", "netns", "del", name], check=True)
        return (
            f"no veth pair can be made here: {linked.stderr.strip()}" if linked.returncode else ""
        )

    def __enter__(self) -> Network:
        try:
            self._ip("netns", "add", self.hub)
            self._ip("-n", self.hub, "link", "add", "bridge0", "type", "bridge")
            self._ip("-n", self.hub, "link", "set", "bridge0", "up")
            for machine in range(1, self.count + 1):
                name, cable = self.name(machine), f"cable{machine}"
                self._ip("netns", "add", name)
                self._ip("-n", self.hub, "link", "add", cable, "type", "veth",
                         "peer", "name", "eth0", "netns", name)  # fmt: skip
                self._ip("-n", self.hub, "link", "set", cable, "master", "bridge0", "up")
                self._ip("-n", name, "addr", "add", f"{self.ip(machine)}/24", "dev", "eth0")
                self._ip("-n", name, "link", "set", "eth0", "up")
                self._ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for name in (*map(self.name, range(1, self.count + 1)), self.hub):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @property
    def hub(self) -> str:
        return f"{self.tag}hub"

    def name(self, machine: int) -> str:
        return f"{self.tag}{machine}"

    def ip(self, machine: int) -> str:
        return f"10.87.0.{machine}"

    def start(self, machine: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """A process on a machine."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name(machine), *command], text=True, **options
        )

    def cut(self, machine: int) -> None:
        """Pull the machine's cable: nothing says goodbye."""
        self._ip("-n", self.hub, "link", "set", f"cable{machine}", "down")

    def mend(self, machine: int) -> None:
        self._ip("-n", self.hub, "link", "set", f"cable{machine}", "up")

    def listeners(self, machine: int) -> list[str]:
        """The TCP addresses at which anybody on the machine listens."""
        shown = subprocess.run(
            ["ip", "netns", "exec", self.name(machine), "ss", "-Hltn"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        return [line.split()[3] for line in shown.splitlines()]

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


def stop(process: subprocess.Popen[str], patience: float = 15) -> int:
    """Ask a process to end; its exit code."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
