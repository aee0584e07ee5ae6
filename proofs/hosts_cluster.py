"""A controller, two workers and an outsider on a network of four machines, with mutual TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from proofs.network import Network
from proofs.processes import child_pids, stop_process, wait_until

ROOT = Path(__file__).resolve().parent.parent
CONTROLLER, WORKERS, OUTSIDER = 1, (2, 3), 4
PORTS = "26600-26609"
AnyNetwork = TypeVar("AnyNetwork", bound=Network)


class Cluster(Generic[AnyNetwork]):
    """Machines with certificates; workers run on machines 2 and 3 once they are started.

    Example:
        cluster = Cluster(LoopbackNetwork(4), folder)
        cluster.start_worker(2)
    """

    def __init__(self, network: AnyNetwork, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.workers: dict[int, subprocess.Popen[str]] = {}
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HYPERACTOR_")}
        self.environment = {
            **inherited, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(paths),  # the workers import actors of proofs.hosts_machine
        }  # fmt: skip
        from glasshouse.distributed.hosts.certificates import create_certificates

        create_certificates(folder / "own", [network.ip(m) for m in (CONTROLLER, *WORKERS)])
        create_certificates(folder / "other", [network.ip(OUTSIDER)])

    def certificates(self, machine: int) -> Path:
        return self.folder / ("other" if machine == OUTSIDER else "own") / self.network.ip(machine)

    def address(self, machine: int) -> str:
        return f"tls://{self.network.ip(machine)}:{PORTS}"

    @property
    def overrides(self) -> list[str]:
        """The config of a run on the two workers."""
        return [
            f"hosts.addresses=[{','.join(self.address(m) for m in WORKERS)}]",
            f"hosts.certificates={self.certificates(CONTROLLER)}",
        ]

    def glasshouse(self, *arguments: str) -> None:
        """Run a command outside of the network."""
        subprocess.run(
            [sys.executable, "-m", "glasshouse", *arguments], env=self.environment, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def start_worker(self, machine: int) -> str:
        """Start a worker, wait until it is ready, and return its address."""
        worker = self.network.start(
            machine,
            [sys.executable, "-m", "glasshouse", "hosts", "worker",
             "--address", self.address(machine), "--certificates", str(self.certificates(machine))],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.workers[machine] = worker
        assert worker.stdout
        line = next((x for x in worker.stdout if x.startswith(("Ready", "error"))), "it ended")
        assert line.startswith("Ready"), line
        return line.split()[3].rstrip(",")

    def kill_worker(self, machine: int) -> None:
        """Kill the worker, its supervisor and everything it started at once, as a power cut would."""
        from glasshouse.distributed.hosts.worker import session_processes

        leader = self.session_leader(machine)
        self.workers[machine].kill()
        for pid in session_processes(leader):
            os.kill(pid, signal.SIGKILL)
        self.workers.pop(machine).wait()

    def session_leader(self, machine: int) -> int:
        """Return the child of the worker that runs Monarch's loop; it leads its own session."""
        from glasshouse.distributed.hosts.worker import session_processes

        leaders: list[int] = []

        def find_leader() -> bool:  # a child that the worker is replacing may be a zombie
            children = child_pids(self.workers[machine].pid)
            leaders[:] = [pid for pid in children if session_processes(pid)]
            return bool(leaders)

        wait_until(find_leader)
        return leaders[0]

    @contextmanager
    def call(
        self, function: str, machine: int = CONTROLLER, environment: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Iterator[RemoteCall]:  # fmt: skip
        """Run a function of `hosts_machine` on a machine and exchange lines of JSON with it."""
        process = self.network.start(
            machine,
            [sys.executable, "-m", "proofs.hosts_machine", function, json.dumps(arguments)],
            env={**self.environment, **(environment or {})}, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield RemoteCall(process)
        finally:
            stop_process(process)

    def close(self) -> None:
        for worker in self.workers.values():
            stop_process(worker)


class RemoteCall:
    """A function that runs on a machine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def receive(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        return json.loads(line)

    def send(self, **message: Any) -> None:
        assert self.process.stdin
        print(json.dumps(message), file=self.process.stdin, flush=True)
