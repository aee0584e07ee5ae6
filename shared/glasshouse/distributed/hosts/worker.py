"""`glasshouse hosts worker`: makes this machine a host of a run.

The worker itself is a child process in its own session. This process supervises it: it reports when
the worker is ready, answers discovery requests, restarts the worker at another port when it died or
a controller lost it, and ends it with everything it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType

from glasshouse.distributed.hosts.address import (
    Address,
    is_any_address,
    is_same_host,
    listening_ports,
)
from glasshouse.distributed.hosts.discovery import (
    DiscoveryServer,
    listen_at,
    validate_certificate_dir,
)
from glasshouse.distributed.hosts.security import tls_environment
from glasshouse.distributed.monarch_settings import configure_monarch
from glasshouse.distributed.monarch_sockets import clear_socket_directory, socket_environment
from glasshouse.errors import ConfigError, HostError

WORKER_SCRIPT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: exit with the parent
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""
READY_TIMEOUT, TERMINATE_TIMEOUT, POLL_SECONDS = 120.0, 3.0, 0.5


class StopRequested(BaseException):
    """SIGTERM or SIGINT was received."""


def run_worker(
    address: Address,
    certificates: Path,
    say: Callable[[str], None] = print,
    *,
    listen_any: bool = False,
) -> int:
    """Serve until stopped, then return 0; says a line each time the worker is ready.

    An address with a single port has no discovery: the worker cannot be reattached once lost.
    `listen_any` allows an address that the certificate does not name, 0.0.0.0 for example.
    """
    environment = tls_environment(certificates)
    validate_certificate_dir(certificates)
    if not listen_any:
        validate_listen_address(address, certificates)
    configure_monarch(several_hosts=True, extra=environment)
    discovery = None
    if len(address.ports) > 1:
        discovery = DiscoveryServer(address.ip, address.first, certificates)
    worker = Worker(address, say)
    with _stop_signals(), contextlib.suppress(StopRequested):
        try:
            worker.start()
            while True:
                if discovery:
                    discovery.serve_one(POLL_SECONDS, worker.current_port)
                else:
                    time.sleep(POLL_SECONDS)
                if worker.process.poll() is not None:
                    status = _exit_status(worker.process.returncode)
                    say(f"The worker ended with {status}; restarting.")
                    worker.start()
        finally:
            worker.stop()
            if discovery:
                discovery.close()
    say("The worker has ended.")
    return 0


def validate_listen_address(address: Address, certificates: Path) -> None:
    """Refuse an address that stands for all addresses, or that the certificate does not name."""
    if is_any_address(address.ip):
        raise ConfigError(
            f"--address {address} would listen on every network of this machine. Write the address by "
            "which the other machines reach it, or add --listen-any to allow this."
        )
    from glasshouse.distributed.hosts.certificates import read_certificate_hosts

    hosts = read_certificate_hosts(certificates)
    if not any(is_same_host(host, address.ip) for host in hosts):
        raise ConfigError(
            f"--address {address} is not the address of the certificate in {certificates}, which names "
            f"{', '.join(hosts) or 'no host'}; runs would refuse this worker. Use that address, create "
            "a certificate for this one, or add --listen-any to listen here nevertheless."
        )


class Worker:
    """The child process that runs Monarch's worker loop; each start uses another port."""

    process: subprocess.Popen[bytes]

    def __init__(self, address: Address, say: Callable[[str], None]) -> None:
        self.address, self.say = address, say
        self.port: int | None = None

    def current_port(self, avoid: Collection[int]) -> int:
        """Return the worker's port; restart the worker first if its port is in `avoid`."""
        if self.port is None or self.port in avoid:
            self.say("A controller has lost the worker; restarting.")
            return self.start(avoid)
        return self.port

    def start(self, avoid: Collection[int] = ()) -> int:
        """Stop the current process, start another at a free port, and return the port."""
        from glasshouse.distributed.hosts.worker_provider import monarch_address

        self.stop()
        self.port = port = self._free_port(avoid)
        address = self.address.with_port(port)
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WORKER_SCRIPT, monarch_address(address), str(os.getpid())],
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **socket_environment()},
            )  # fmt: skip
            deadline = time.monotonic() + READY_TIMEOUT
            while not listening_ports(self.address.ip, [port]):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    output = " ".join(log.read().split())[-400:]
                    raise HostError(f"The worker did not start at {address}: {output}")
                time.sleep(0.05)
        self.say(f"Ready: worker at {address}, process {self.process.pid}.")
        return port

    def stop(self) -> None:
        if hasattr(self, "process"):
            terminate_session(self.process)
            clear_socket_directory()

    def _free_port(self, avoid: Collection[int]) -> int:
        """Return the next free port, one of `avoid` only if there is no other."""
        discovery = {self.address.first} if len(self.address.ports) > 1 else set()
        ports = [p for p in self.address.ports_after(self.port) if p not in discovery]
        reason: OSError | None = None
        for port in sorted(ports, key=lambda p: p in avoid):
            try:
                with listen_at(self.address.ip, port):
                    return port
            except OSError as error:
                reason = error
        raise HostError(
            f"A worker cannot listen at {self.address}: {reason}. The host must be an address of this "
            "machine, and a port of the range must be free."
        )


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """Raise `StopRequested` at the first SIGTERM or SIGINT; ignore further ones during cleanup."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise StopRequested

    previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def terminate_session(leader: subprocess.Popen[bytes]) -> None:
    """End a process and everything it started: SIGTERM, then SIGKILL for what remains."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + TERMINATE_TIMEOUT
        for process in session_processes(leader.pid):
            with contextlib.suppress(OSError):
                os.kill(process, number)
        while time.monotonic() < deadline:
            leader.poll()  # reaps the child, which is a zombie until then
            if not session_processes(leader.pid):
                return
            time.sleep(0.02)


def session_processes(leader: int) -> list[int]:
    """Return the running processes of a session; without /proc, only its leader."""
    try:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        pids = [leader]
    return [pid for pid in pids if _runs_in_session(pid, leader)]


def _runs_in_session(pid: int, leader: int) -> bool:
    try:
        if os.getsid(pid) != leader:
            return False
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _exit_status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
