"""Addresses of workers, as in `tls://10.0.0.2:26600-26609`: a host and a range of ports. The worker listens at one of
them; the first port, for discovery, tells a controller at which.

TCP connections outlive a cut link: old ones block for minutes on either side, and a worker that was lost can only be
reached at another port, under another identity. A controller that shows a certificate of the same CA sends the ports at
which it lost the worker, and gets a new one.

    controller ── 26601 26602 ──► discovery port 26600   one line each way, over TLS
    controller ◄── 26603 ────────                        the worker was restarted there

A slow client delays neither another client nor the supervision of the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from glasshouse.distributed.hosts.certificates import CA, tls_context
from glasshouse.errors import ConfigError, HostError

PATTERN = re.compile(
    r"tls://(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(?P<first>\d+)-(?P<last>\d+)"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens: a host and the ports it may use.

    Example: `Address.parse("tls://10.0.0.2:26600-26609").with_port(26601)`
    """

    host: str
    """A name or an IP; IPv6 in brackets."""
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Address:
        match = PATTERN.fullmatch(text.strip())
        if not match:
            raise ConfigError(
                f'"{text}" is not an address; write tls://HOST:FIRST-LAST, as in tls://10.0.0.2:26600-26609.'
            )
        first, last = int(match["first"]), int(match["last"])
        if not 0 < first < last <= 65535:
            raise ConfigError(f'"{text}": ports are 1 to 65535, the smaller one first.')
        return cls(match["host"], first, last)

    def __str__(self) -> str:
        ports = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"tls://{self.host}:{ports}"

    @property
    def ip(self) -> str:
        """The host without brackets, as sockets expect it."""
        return self.host.strip("[]")

    @property
    def worker_ports(self) -> range:
        """The ports without the one for discovery."""
        return range(self.first + 1, self.last + 1)

    def with_port(self, port: int) -> Address:
        return Address(self.host, port, port)

    def identity(self) -> int:
        """Return 64 bits derived from host and port."""
        return int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:8], "big")

    def for_monarch(self) -> str:
        """Return the address with the identity that worker and controller agree on."""
        from monarch.actor import ProcId, Uid

        return f"{ProcId(Uid.instance_from_value(self.identity(), 'service'))}@{self}"


def listen_at(host: str, port: int) -> socket.socket:
    """Return a socket that listens at a host name or IP; port 0: any free port."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=512)


CONNECT_TIMEOUT = 2.0
CLIENT_TIMEOUT = 5.0
"""Seconds that a client has for the TLS handshake, and again for its request."""
RESTART_TIMEOUT = 60.0
"""Seconds that a worker may take to restart."""
MAX_LINE = 4096


async def serve_discovery(
    listener: socket.socket, folder: Path, choose_port: Callable[[Collection[int]], Awaitable[int]]
) -> asyncio.Server:
    """Answer clients, each in its own task, until the returned server is closed. The worker's side.

    Example: `await serve_discovery(listen_at("10.0.0.2", 26600), folder, worker.choose_port)`
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # whatever a client sends must end no more than its own connection
        with contextlib.suppress(Exception), contextlib.closing(writer):
            async with asyncio.timeout(CLIENT_TIMEOUT):
                avoid = [int(port) for port in (await reader.readuntil(b"\n")).split()]
            writer.write(f"{await choose_port(avoid)}\n".encode())

    return await asyncio.start_server(
        answer,
        sock=listener,
        ssl=tls_context(ssl.PROTOCOL_TLS_SERVER, folder),
        ssl_handshake_timeout=CLIENT_TIMEOUT,
        limit=MAX_LINE,
    )


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
