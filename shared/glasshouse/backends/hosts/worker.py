"""A worker: what makes a machine a host of somebody's run.

The worker itself is a process of its own in a session of its own. We stand above it: say when it is
ready, answer at the door, start it anew at another port when it has died or a controller has lost
it, and end it with everything it started when we are asked to.
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

from glasshouse.backends.hosts.address import Address, listening
from glasshouse.backends.hosts.discovery import Door, check_folder, listener
from glasshouse.backends.hosts.security import WARNING, tell_monarch
from glasshouse.errors import ConfigError, HostError

LOOP = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive who started us
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""
READY_TIMEOUT, GRACE, TICK = 120.0, 3.0, 0.5


class Stop(BaseException):
    """SIGTERM or SIGINT."""


def run_worker(
    address: Address, certificates: Path | None, say: Callable[[str], None] = print
) -> int:
    """Until it is stopped: 0. A line whenever it is ready.

    With one port only there is no door: the worker is there, but it is not found again once lost.
    """
    if (address.scheme == "tls") != (certificates is not None):
        raise ConfigError(
            f"{address} needs this host's certificates: --certificates DIR."
            if address.scheme == "tls"
            else f"{address} is plain TCP, which knows no certificates; write tls:// instead."
        )
    tell_monarch(certificates)
    if certificates is not None:
        check_folder(certificates)
    else:
        say(f"Warning: {WARNING}")
    door = None
    if len(address.ports) > 1:
        door = Door(address.ip, address.first, certificates)
    worker = Worker(address, say)
    with _signals(), contextlib.suppress(Stop):
        try:
            worker.start()
            while True:
                if door:
                    door.answer(TICK, worker.where)
                else:
                    time.sleep(TICK)
                if worker.process.poll() is not None:
                    say(f"The worker ended with {_how(worker.process.returncode)}: it starts anew.")
                    worker.start()
        finally:
            worker.end()
            if door:
                door.close()
    say("The worker has ended.")
    return 0


class Worker:
    """The process that serves, at one port after the other."""

    process: subprocess.Popen[bytes]

    def __init__(self, address: Address, say: Callable[[str], None]) -> None:
        self.address, self.say = address, say
        self.port: int | None = None

    def where(self, avoid: Collection[int]) -> int:
        """The port, once the worker is at none of those."""
        if self.port is None or self.port in avoid:
            self.say("A controller has lost the worker: it starts anew.")
            return self.start(avoid)
        return self.port

    def start(self, avoid: Collection[int] = ()) -> int:
        """End what there is; serve at another port."""
        from glasshouse.backends.hosts.attached import with_identity

        self.end()
        self.port = port = self._free_port(avoid)
        at = with_identity(self.address.at(port))
        with tempfile.TemporaryFile("w+", errors="replace") as words:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LOOP, at, str(os.getpid())],
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=words, stderr=words,
            )  # fmt: skip
            until = time.monotonic() + READY_TIMEOUT
            while not listening(self.address.ip, [port]):
                if self.process.poll() is not None or time.monotonic() > until:
                    words.seek(0)
                    last = " ".join(words.read().split())[-400:]
                    raise HostError(f"The worker did not start at {self.address.at(port)}: {last}")
                time.sleep(0.05)
        self.say(f"Ready: worker at {self.address.at(port)}, process {self.process.pid}.")
        return port

    def end(self) -> None:
        if hasattr(self, "process"):
            end_session(self.process)

    def _free_port(self, avoid: Collection[int]) -> int:
        """The next port that nobody uses, any other before one to avoid."""
        door = {self.address.first} if len(self.address.ports) > 1 else set()
        order = [p for p in self.address.after(self.port) if p not in door]
        why: OSError | None = None
        for port in sorted(order, key=lambda p: p in avoid):
            try:
                with listener(self.address.ip, port):
                    return port
            except OSError as error:
                why = error
        raise HostError(
            f"A worker cannot listen at {self.address}: {why}. The host must be an address of this "
            "machine, and a port of the range must be free."
        )


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise `Stop`, once; what then cleans up is not interrupted again."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Stop

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: first a request, then no more requests."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + GRACE
        for process in session(leader.pid):
            with contextlib.suppress(OSError):
                os.kill(process, kind)
        while time.monotonic() < until:
            leader.poll()  # a dead child is a zombie until it is asked after
            if not session(leader.pid):
                return
            time.sleep(0.02)


def session(leader: int) -> list[int]:
    """The live processes of a session; where there is no /proc, its leader alone."""
    try:
        numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        numbers = [leader]
    return [n for n in numbers if _alive_in(n, leader)]


def _alive_in(process: int, leader: int) -> bool:
    try:
        if os.getsid(process) != leader:
            return False
        stat = Path(f"/proc/{process}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
