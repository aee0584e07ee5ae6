"""A worker: what makes a machine a host of somebody's run.

The worker itself is a process of its own in a session of its own. We stand above it: say when it is
ready, end it and everything it started when we are asked to, and start it anew at the next port of
its range if it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from glasshouse.errors import ConfigError, HostError
from glasshouse.run.hosts.address import Address, listening
from glasshouse.run.hosts.security import WARNING, tell_monarch

LOOP = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive who started us
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address=sys.argv[1], ca="trust_all_connections")
"""
READY_TIMEOUT, GRACE = 120.0, 3.0


class Stop(BaseException):
    """SIGTERM or SIGINT."""


def run_worker(
    address: Address, certificates: Path | None, bind: str = "", say: Callable[[str], None] = print
) -> int:
    """Until it is stopped: 0. One line when it is ready, one for each new start."""
    if (address.scheme == "tls") != (certificates is not None):
        raise ConfigError(
            f"{address} needs this host's certificates: --certificates DIR."
            if address.scheme == "tls"
            else f"{address} is plain TCP, which knows no certificates; write tls:// instead."
        )
    tell_monarch(certificates)
    if certificates is not None:
        from glasshouse.run.hosts.attached import check_folder

        check_folder(certificates)
    else:
        say(f"Warning: {WARNING}")
    with _signals(), contextlib.suppress(Stop):
        while True:
            port = _next_port(address, bind)
            _remember(address, port)
            ended = _one(address, port, bind, say)
            if ended == 0:
                say("The worker was shut down by its controller.")
                return 0
            say(f"The worker at port {port} ended with {_how(ended)}; it starts anew.")
    say("The worker has ended.")
    return 0


def _one(address: Address, port: int, bind: str, say: Callable[[str], None]) -> int:
    """Start a worker at a port and wait for its end; nothing of it is left."""
    from glasshouse.run.hosts.attached import with_identity

    at = with_identity(address.at(port))
    if bind:
        at += f"@{address.scheme}://{bind}:{port}"
    with tempfile.TemporaryFile("w+", errors="replace") as words:
        worker = subprocess.Popen(
            [sys.executable, "-c", LOOP, at, str(os.getpid())],
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=words, stderr=words,
        )  # fmt: skip
        try:
            _wait_until_ready(worker, "127.0.0.1" if bind else address.ip, port, words)
            say(f"Ready: worker at {address.at(port)}, process {worker.pid}.")
            return worker.wait()
        finally:
            end_session(worker)


def _wait_until_ready(
    worker: subprocess.Popen[bytes], host: str, port: int, words: IO[str]
) -> None:
    until = time.monotonic() + READY_TIMEOUT
    while not listening(host, [port]):
        if worker.poll() is not None or time.monotonic() > until:
            words.seek(0)
            last = " ".join(words.read().split())[-400:]
            raise HostError(f"The worker did not start at {host}:{port}: {last or 'no words'}")
        time.sleep(0.05)


def _next_port(address: Address, bind: str) -> int:
    """The first port of the range that is free, any other before the one used last."""
    host = bind or address.ip
    why: OSError | None = None
    for port in address.after(_remembered(address)):
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
            return port
        except OSError as error:
            why = error
    raise HostError(
        f"A worker cannot listen at {address}: {why}. The host must be an address of this machine "
        "(or use --bind), and a port of the range must be free."
    )


def _memory(address: Address) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "glasshouse" / f"worker-{address.identity():016x}.port"


def _remembered(address: Address) -> int | None:
    try:
        return int(_memory(address).read_text())
    except (OSError, ValueError, RuntimeError):
        return None


def _remember(address: Address, port: int) -> None:
    """Without a home to write to, a restarted worker may take its old port: no more than that."""
    with contextlib.suppress(OSError, RuntimeError):
        _memory(address).parent.mkdir(parents=True, exist_ok=True)
        _memory(address).write_text(str(port))


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
    for kind, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        until = time.monotonic() + patience
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
