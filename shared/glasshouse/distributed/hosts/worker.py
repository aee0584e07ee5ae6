"""`glasshouse hosts worker`: makes this machine a host of a run.

The worker itself is a child process in its own session. This process supervises it: it reports when the worker is
ready, answers discovery requests, restarts the worker at another port when it died or a controller lost it, and ends it
with everything it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from glasshouse.distributed import bootstrap
from glasshouse.distributed.hosts.certificates import read_certificate_hosts, tls_environment
from glasshouse.distributed.hosts.discovery import Address, listen_at, serve_discovery
from glasshouse.distributed.monarch_settings import SEVERAL_HOSTS, configure_monarch
from glasshouse.errors import ConfigError, HostError

READY_TIMEOUT, TERMINATE_TIMEOUT, POLL_SECONDS = 120.0, 3.0, 0.5


def run_worker(address: Address, certificates: Path, say: Callable[[str], None] = print) -> int:
    """Serve until SIGTERM or SIGINT, then return 0; says a line each time the worker is ready."""
    environment = tls_environment(certificates)
    validate_listen_address(address, certificates)
    configure_monarch(SEVERAL_HOSTS, environment)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_supervise(Worker(address, say), certificates))
    say("The worker has ended.")
    return 0


async def _supervise(worker: Worker, certificates: Path) -> None:
    """Keep the worker running and answer discovery requests until a signal cancels this task."""
    task = asyncio.current_task()
    assert task
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    listener = _listen(worker.address, [worker.address.first])
    server = await serve_discovery(listener, certificates, worker.choose_port)
    try:
        while server.is_serving():
            await worker.keep_running()
            await asyncio.sleep(POLL_SECONDS)
    finally:  # nothing is awaited here: a second signal has no effect
        worker.stop()


def validate_listen_address(address: Address, certificates: Path) -> None:
    """Refuse an address that the certificate does not name; no certificate names all addresses."""
    hosts = read_certificate_hosts(certificates)
    if _normalize(address.ip) not in map(_normalize, hosts):
        raise ConfigError(
            f"--address {address} is not the address of the certificate in {certificates}, which names "
            f"{', '.join(hosts) or 'no host'}; runs would refuse this worker. Use that address, or create "
            "a certificate for this one."
        )


def _normalize(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.rstrip(".").lower()


class Worker:
    """The child process that runs Monarch's worker loop; each start uses another port."""

    def __init__(self, address: Address, say: Callable[[str], None]) -> None:
        self.address, self.say = address, say
        self.process: subprocess.Popen[bytes] | None = None
        self.port = address.last  # of the last start; the next one takes the next port
        self.starting = asyncio.Lock()

    async def keep_running(self) -> None:
        """Start the process if it does not run."""
        async with self.starting:
            if self.process and self.process.poll() is None:
                return
            if self.process:
                self.say(f"The worker ended with code {self.process.returncode}; restarting.")
            try:
                await self._start()
            except OSError as error:  # no file descriptor is left, for example
                self.say(f"The worker cannot start yet: {error}")

    async def choose_port(self, avoid: Collection[int]) -> int:
        """Return the worker's port; restart the worker first if its port is in `avoid`."""
        async with self.starting:
            if self.port in avoid:
                self.say("A controller has lost the worker; restarting.")
                await self._start(avoid)
            return self.port

    async def _start(self, avoid: Collection[int] = ()) -> None:
        """Stop the current process and start another at the next free port."""
        self.stop()
        self.sockets = tempfile.TemporaryDirectory()  # a killed child leaves its sockets here
        ports = sorted(self.address.worker_ports, key=lambda port: (port <= self.port, port))
        with _listen(self.address, sorted(ports, key=lambda port: port in avoid)) as probe:
            self.port = probe.getsockname()[1]
        address = self.address.with_port(self.port)
        command = [bootstrap.__file__, "worker", str(os.getpid()), address.for_monarch()]
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *command],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": self.sockets.name},
            )
            deadline = time.monotonic() + READY_TIMEOUT
            while not await _is_listening(address):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    output = " ".join(log.read().split())[-400:]
                    raise HostError(f"The worker did not start at {address}: {output}")
                await asyncio.sleep(0.05)
        self.say(f"Ready: worker at {address}, process {self.process.pid}.")

    def stop(self) -> None:
        """End the process and everything it started: SIGTERM, then SIGKILL for what remains."""
        if self.process is None:
            return
        leader = self.process.pid
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + TERMINATE_TIMEOUT
            for pid in session_processes(leader):
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            while session_processes(leader) and time.monotonic() < deadline:
                time.sleep(0.02)
                self.process.poll()  # reaps the child, which is a zombie until then
        self.process = None
        self.sockets.cleanup()


def session_processes(leader: int) -> list[int]:
    """Return the running processes of a session."""

    def is_running(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return os.getsid(pid) == leader and state not in "ZX"
        except OSError:
            return False

    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_running(pid)]


def _listen(address: Address, ports: list[int]) -> socket.socket:
    """Listen at the first port that is free."""
    for port in ports:
        try:
            return listen_at(address.ip, port)
        except OSError as error:
            reason = error
    raise HostError(
        f"A worker cannot listen at {address}: {reason}. The host must be an address of this "
        "machine, and a port of the range must be free."
    )


async def _is_listening(address: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(address.ip, address.first)
    except OSError:
        return False
    writer.close()
    return True
