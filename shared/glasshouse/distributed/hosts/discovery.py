"""Discovery: the first port of a worker's range tells a controller where the worker listens.

TCP connections outlive a cut link: old ones block for minutes on either side, and a worker that was
lost can only be reached at another port, under another identity. A controller that shows a
certificate of the same CA sends the ports at which it lost the worker, and gets a new one.

    controller ── {"avoid": [26601]} ──► discovery port 26600   one line of JSON each way, over TLS
    controller ◄── {"port": 26602} ────                         the worker was restarted there

Each client has one deadline, so a slow client delays neither another client nor the supervision of the
worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from glasshouse.distributed.hosts.address import Address
from glasshouse.distributed.hosts.certificates import CA, tls_context
from glasshouse.errors import HostError

CONNECT_TIMEOUT = 2.0
CLIENT_TIMEOUT = 5.0
"""Seconds that a client has in total for the TLS handshake and its request."""
RESTART_TIMEOUT = 60.0
"""Seconds that a worker may take to restart."""
MAX_LINE = 4096
MAX_CONNECTIONS = 256
"""Open connections. One more closes the oldest that has not sent its request yet."""


class DiscoveryServer:
    """The worker's side: answers clients until `serve` is cancelled.

    Example: `await DiscoveryServer(listen_at("10.0.0.2", 26600), folder, worker.choose_port).serve()`
    """

    def __init__(
        self,
        listener: socket.socket,
        folder: Path,
        choose_port: Callable[[Collection[int]], Awaitable[int]],
    ) -> None:
        listener.setblocking(False)
        self.listener, self.choose_port = listener, choose_port
        self.context = tls_context(ssl.PROTOCOL_TLS_SERVER, folder)
        self.connections: dict[asyncio.Task[None], bool] = {}
        """Open connections, oldest first; True once the request has been read."""

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self.listener)
            except OSError:  # no file descriptor is left, for example
                self._drop_oldest()
                await asyncio.sleep(0.05)
                continue
            if len(self.connections) >= MAX_CONNECTIONS and not self._drop_oldest():
                client.close()
                continue
            task = asyncio.create_task(self._serve_client(client))
            self.connections[task] = False
            task.add_done_callback(lambda task: self.connections.pop(task, None))

    def _drop_oldest(self) -> bool:
        """End the oldest connection that has not sent its request; return whether there was one."""
        oldest = next((task for task, is_read in self.connections.items() if not is_read), None)
        if oldest is None:
            return False
        self.connections.pop(oldest)
        oldest.cancel()
        return True

    async def _serve_client(self, client: socket.socket) -> None:
        """Serve one client; drop unauthenticated or malformed requests without an answer."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=MAX_LINE)
        transport: asyncio.Transport | None = None
        # Whatever a client sends must end no more than its own connection.
        with contextlib.suppress(Exception):
            try:
                async with asyncio.timeout(CLIENT_TIMEOUT):
                    transport, _ = await loop.connect_accepted_socket(
                        lambda: asyncio.StreamReaderProtocol(reader), client, ssl=self.context,
                        ssl_handshake_timeout=CLIENT_TIMEOUT, ssl_shutdown_timeout=CLIENT_TIMEOUT,
                    )  # fmt: skip
                    avoid = parse_request(await reader.readuntil(b"\n"))
                task = asyncio.current_task()
                assert task
                self.connections[task] = True
                port = await self.choose_port(avoid)
                transport.write(json.dumps({"port": port}).encode() + b"\n")
            finally:
                if transport is not None:
                    transport.close()
                else:
                    client.close()


def parse_request(line: bytes) -> list[int]:
    """Return the ports to avoid; raise `ValueError` for anything but {"avoid": [port, …]}."""
    try:
        request = json.loads(line)
    except RecursionError:
        raise ValueError("the request is nested too deeply") from None
    avoid = request.get("avoid") if isinstance(request, dict) else None
    if not isinstance(avoid, list) or not all(
        type(port) is int and 0 < port <= 65535 for port in avoid
    ):
        raise ValueError('the request is not {"avoid": [port, …]}')
    return avoid


def request_worker_port(address: Address, folder: Path, avoid: Collection[int] = ()) -> int:
    """Ask a worker for its port, other than the ports in `avoid`. The controller's side."""
    context = tls_context(ssl.PROTOCOL_TLS_CLIENT, folder)
    with socket.create_connection((address.ip, address.first), CONNECT_TIMEOUT) as plain:
        try:
            server = context.wrap_socket(plain, server_hostname=address.ip)
        except ssl.SSLCertVerificationError as error:
            raise HostError(
                f"The worker at {address} is not trusted: {error.verify_message.rstrip('.')}. Its "
                f"certificate must name {address.host} and be signed by {folder / CA}."
            ) from None
        with server:
            return _exchange(server, avoid, address, folder)


def _exchange(server: ssl.SSLSocket, avoid: Collection[int], address: Address, folder: Path) -> int:
    """Send the request and return the port of the answer."""
    try:
        server.sendall(json.dumps({"avoid": list(avoid)}).encode() + b"\n")
        server.settimeout(RESTART_TIMEOUT)
        answer = server.makefile("rb").readline(MAX_LINE)
    except (ssl.SSLError, ConnectionError):
        answer = b""
    if not answer:  # TLS 1.3 tells a client only now that its certificate was refused
        raise HostError(
            f"The worker at {address} closed the connection: it refused this host's certificate, or is "
            f"being stopped. Both must be signed by the same CA; the one in {folder} is from another "
            "CA or has expired."
        )
    try:
        return int(json.loads(answer)["port"])
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(
            f"The program that listens at {address} is not a worker: {error}."
        ) from None
