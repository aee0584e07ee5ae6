"""Discovery: the first port of a worker's range tells a controller where the worker listens.

TCP connections outlive a cut link: old ones block for minutes on either side, and a worker that was lost can only be
reached at another port, under another identity. A controller that shows a certificate of the same CA sends the ports at
which it lost the worker, and gets a new one.

    controller ── 26601 26602 ──► discovery port 26600   one line each way, over TLS
    controller ◄── 26603 ────────                        the worker was restarted there

Each client has one deadline, so a slow client delays neither another client nor the supervision of the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
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
        while True:
            try:
                client, _ = await asyncio.get_running_loop().sock_accept(self.listener)
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
        if oldest is not None:
            self.connections.pop(oldest)
            oldest.cancel()
        return oldest is not None

    async def _serve_client(self, client: socket.socket) -> None:
        """Serve one client; drop unauthenticated or malformed requests without an answer."""
        task, reader = asyncio.current_task(), asyncio.StreamReader(limit=MAX_LINE)
        connection: socket.socket | asyncio.Transport = client
        assert task
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT):
                connection, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: asyncio.StreamReaderProtocol(reader), client, ssl=self.context
                )
                avoid = [int(port) for port in (await reader.readuntil(b"\n")).split()]
            self.connections[task] = True
            connection.write(f"{await self.choose_port(avoid)}\n".encode())
        except Exception:  # whatever a client sends must end no more than its own connection
            return
        finally:
            connection.close()


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
        answer = b""
        with server, contextlib.suppress(ssl.SSLError, ConnectionError):
            server.sendall(" ".join(map(str, avoid)).encode() + b"\n")
            server.settimeout(RESTART_TIMEOUT)
            answer = server.makefile("rb").readline(MAX_LINE)
    if not answer.strip().isdigit():  # TLS 1.3 refuses a client's certificate only now
        raise HostError(
            f"The worker at {address} closed the connection: it refused this host's certificate, or is "
            f"being stopped. Both must be signed by the same CA; the one in {folder} is from another "
            "CA or has expired."
        )
    return int(answer)
