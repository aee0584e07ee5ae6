"""Addresses of workers: `tls://10.0.0.2:26600`, or a range of ports, `tls://10.0.0.2:26600-26609`.

With a range, the first port is for discovery (see `discovery`) and the worker listens at one of the
others. A worker's identity is a hash of host and port, so both sides can compute it.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import re
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from glasshouse.errors import ConfigError

PATTERN = re.compile(
    r"tls://(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(?P<first>\d+)(?:-(?P<last>\d+))?"
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
                f'"{text}" is not an address; write tls://HOST:PORT or tls://HOST:FIRST-LAST, '
                "for example tls://10.0.0.2:26600-26609."
            )
        first = int(match["first"])
        last = int(match["last"] or first)
        if not 0 < first <= last <= 65535:
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
    def ports(self) -> range:
        return range(self.first, self.last + 1)

    def with_port(self, port: int) -> Address:
        return Address(self.host, port, port)

    def ports_after(self, port: int | None) -> Iterator[int]:
        """Yield all ports in order, from the one after `port` around to `port` itself."""
        start = 0 if port not in self.ports else self.ports.index(port) + 1  # type: ignore[arg-type]
        yield from (self.ports[(start + i) % len(self.ports)] for i in range(len(self.ports)))

    def identity(self) -> int:
        """Return 64 bits derived from host and port."""
        return int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:8], "big")


def is_any_address(host: str) -> bool:
    """Whether the host stands for all addresses of a machine: 0.0.0.0, ::, or another spelling."""
    try:
        candidates = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None)]
    except (OSError, UnicodeError):
        candidates = [host]
    for candidate in candidates:
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(candidate).is_unspecified:
                return True
    return False


def is_same_host(a: str, b: str) -> bool:
    """Whether two hosts are the same IP address or, without resolving them, the same name."""
    try:
        return ipaddress.ip_address(a) == ipaddress.ip_address(b)
    except ValueError:
        return a.rstrip(".").lower() == b.rstrip(".").lower()


def listening_ports(host: str, ports: Iterable[int], timeout: float = 1.0) -> set[int]:
    """Return the ports that accept a connection; all are tried at the same time."""
    accepting: set[int] = set()
    with contextlib.ExitStack() as sockets, selectors.DefaultSelector() as selector:
        for port in ports:
            try:
                family, kind, protocol, _, target = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )[0]
            except OSError:
                return accepting
            probe = sockets.enter_context(socket.socket(family, kind, protocol))
            probe.setblocking(False)
            probe.connect_ex(target)
            selector.register(probe, selectors.EVENT_WRITE, port)
        deadline = time.monotonic() + timeout
        while selector.get_map() and (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                probe = cast(socket.socket, key.fileobj)
                selector.unregister(probe)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    accepting.add(key.data)
    return accepting
