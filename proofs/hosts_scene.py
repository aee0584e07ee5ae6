"""Machines in network namespaces with workers on two of them, and mutual TLS between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proofs.network import Network, stop

HERE = Path(__file__).resolve().parent
CONTROLLER, STRANGER, WORKERS = 1, 4, (2, 3)
PORTS = "26600-26609"


class Scene:
    """A network of four machines: a controller, two workers, a stranger."""

    def __init__(self, network: Network, folder: Path, python: str = sys.executable) -> None:
        self.network, self.folder, self.python = network, folder, python
        self.workers: dict[int, subprocess.Popen[str]] = {}
        self.process: dict[int, int] = {}
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        plain = {k: v for k, v in os.environ.items() if not k.startswith("HYPERACTOR_")}
        self.environment = {
            **plain, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(paths),  # the workers import the actors of hosts_machine
        }  # fmt: skip
        machines = (CONTROLLER, *WORKERS)
        self.glasshouse("hosts", "certificates", "--out", str(folder / "own"),
                        *[f"--host={network.ip(m)}" for m in machines])  # fmt: skip
        self.glasshouse("hosts", "certificates", "--out", str(folder / "other"),
                        f"--host={network.ip(STRANGER)}")  # fmt: skip

    def certificates(self, machine: int) -> Path:
        return self.folder / "own" / self.network.ip(machine)

    def address(self, machine: int) -> str:
        return f"tls://{self.network.ip(machine)}:{PORTS}"

    @property
    def overrides(self) -> list[str]:
        """The configuration of a run on the two workers."""
        return [
            "hosts.kind=addresses",
            f"hosts.addresses=[{','.join(self.address(m) for m in WORKERS)}]",
            f"hosts.certificates={self.certificates(CONTROLLER)}",
        ]

    def glasshouse(self, *arguments: str) -> None:
        subprocess.run(
            [self.python, "-m", "glasshouse", *arguments], env=self.environment, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def start_worker(self, machine: int) -> str:
        """Start a worker and wait for its line; returns where it listens."""
        worker = self.network.start(
            machine,
            [self.python, "-m", "glasshouse", "hosts", "worker", "--address", self.address(machine),
             "--certificates", str(self.certificates(machine))],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.workers[machine] = worker
        assert worker.stdout
        line = next((x for x in worker.stdout if x.startswith(("Ready", "error"))), "it ended")
        assert line.startswith("Ready"), line
        self.process[machine] = int(line.split("process ")[1].rstrip(".\n"))
        return line.split()[3].rstrip(",")

    def kill_worker(self, machine: int) -> None:
        """The power goes: the worker, what stands above it and what it started are gone at once."""
        from glasshouse.backends.hosts.worker import session

        self.workers[machine].kill()
        for process in session(self.process[machine]):
            os.kill(process, signal.SIGKILL)
        self.workers.pop(machine).wait()

    @contextmanager
    def inside(
        self, what: str, machine: int = CONTROLLER, environment: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Iterator[Inside]:  # fmt: skip
        """Run a function of hosts_machine on a machine and talk with it by lines of JSON."""
        process = self.network.start(
            machine,
            [self.python, "-c", "import hosts_machine; hosts_machine.main()",
             what, json.dumps(arguments)],
            env={**self.environment, **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield Inside(process)
        finally:
            stop(process)

    def close(self) -> None:
        for worker in self.workers.values():
            stop(worker)

    def left_over(self) -> list[int]:
        """Processes that still live on any of the machines."""
        names = [self.network.name(m) for m in range(1, self.network.count + 1)]
        listed = [subprocess.run(["ip", "netns", "pids", n], capture_output=True, text=True).stdout
                  for n in names]  # fmt: skip
        return [int(pid) for pids in listed for pid in pids.split()]


class Inside:
    """The other end of a function that runs on a machine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return json.loads(line)

    def say(self, **what: Any) -> None:
        assert self.process.stdin
        print(json.dumps(what), file=self.process.stdin, flush=True)
