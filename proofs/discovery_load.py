"""A worker's discovery port under load: slow clients delay neither rightful ones nor the supervisor.

    python -m proofs.discovery_load        200 half-open and 20 trickling clients, 1 minute

Uses real sockets on loopback and a discovery server with certificates, but no Monarch worker; the
supervisor's loop is the one of `glasshouse hosts worker`. CI runs a smaller version
(tests/distributed/test_hosts.py); the limit on the time is only checked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from glasshouse.distributed.hosts.certificates import create_certificates
from glasshouse.distributed.hosts.discovery import (
    Address,
    listen_at,
    request_worker_port,
    serve_discovery,
)

HALF_OPEN, TRICKLING, RIGHTFUL, LIMIT = 200, 20, 20, 2.0


class Supervisor:
    """A discovery server whose requests are answered while a child process is supervised."""

    def __init__(self, folder: Path) -> None:
        (self.certificates,) = create_certificates(folder / "own", ["127.0.0.1"])
        self.listener = listen_at("127.0.0.1", 0)
        first = self.listener.getsockname()[1]
        self.address = Address("127.0.0.1", first, first + 9)
        self.requests: list[Collection[int]] = []
        self.child = subprocess.Popen(["sleep", "600"])
        self.detected: float | None = None
        """When the end of the child was detected."""
        self.closed = False
        self.thread = threading.Thread(target=lambda: asyncio.run(self._supervise()), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.closed = True
        self.thread.join(10)
        self.child.kill()
        self.child.wait()

    def request(self, avoid: Collection[int] = ()) -> int:
        return request_worker_port(self.address, self.certificates, avoid)

    async def _supervise(self) -> None:
        server = await serve_discovery(self.listener, self.certificates, self._choose_port)
        while not self.closed:
            await asyncio.sleep(0.1)
            if self.detected is None and self.child.poll() is not None:
                self.detected = time.monotonic()
        server.close()

    async def _choose_port(self, avoid: Collection[int]) -> int:
        self.requests.append(avoid)
        return self.address.first + 1


@contextlib.contextmanager
def slow_clients(supervisor: Supervisor, half_open: int, trickling: int) -> Iterator[None]:
    """Keep connections open: some send nothing, some a byte from time to time.

    Half of the trickling clients have no certificate and never complete the handshake; the others
    have one and never complete their request. Closed connections are opened again.
    """
    stop = threading.Event()
    target = (supervisor.address.ip, supervisor.address.first)
    context = ssl.create_default_context(cafile=supervisor.certificates / "ca.pem")
    context.load_cert_chain(
        supervisor.certificates / "host.pem", supervisor.certificates / "host.key"
    )

    def trickle(is_certified: bool) -> None:
        # The first bytes of a TLS record that announces a long client hello.
        opening = b"{" if is_certified else b"\x16\x03\x01\x20\x00\x01\x00\x1f\xfc\x03\x03"
        while not stop.is_set():
            with contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
                client = stack.enter_context(socket.create_connection(target, 5))
                if is_certified:
                    client = stack.enter_context(
                        context.wrap_socket(client, server_hostname=target[0])
                    )
                client.sendall(opening)
                while not stop.wait(0.2):
                    client.sendall(b" ")
            stop.wait(0.05)

    threads = [
        threading.Thread(target=trickle, args=(n % 2 == 1,), daemon=True) for n in range(trickling)
    ]
    silent = [socket.create_connection(target, 10) for _ in range(half_open)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for client in silent:
            client.close()
        for thread in threads:
            thread.join(10)


def measure(supervisor: Supervisor, rightful: int) -> list[float]:
    """Return how long each rightful client waits for its answer."""
    seconds = []
    for _ in range(rightful):
        started = time.monotonic()
        assert supervisor.request() == supervisor.address.first + 1
        seconds.append(time.monotonic() - started)
    return seconds


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(Path(folder))
        try:
            seconds = list[float]()
            for _ in range(5):  # the half-open ones are dropped after 5 s: connect them again
                with slow_clients(supervisor, HALF_OPEN, TRICKLING):
                    seconds += measure(supervisor, RIGHTFUL)
                    time.sleep(2)
                    seconds += measure(supervisor, RIGHTFUL)
                    with contextlib.suppress(ProcessLookupError):
                        supervisor.child.kill()
                    killed = time.monotonic()
                    while supervisor.detected is None:
                        assert time.monotonic() < killed + LIMIT, "a dead child was not detected"
                        time.sleep(0.01)
        finally:
            supervisor.close()
    print(
        f"{HALF_OPEN} half-open and {TRICKLING} trickling clients: {len(seconds)} rightful requests "
        f"answered within {max(seconds):.2f} s (limit {LIMIT:g} s)"
    )
    return 0 if max(seconds) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
