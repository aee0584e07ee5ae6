"""Addresses of workers: `tls://10.0.0.2:26600`, or with a range of ports, `tls://10.0.0.2:26600-26609`.

With a range, the first port is the door (see `door`) and the worker is at one of the others. Its
identity follows from scheme, host and port: whoever knows the address knows it too.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from glasshouse.errors import ConfigError

FORM = re.compile(
    r"(?P<scheme>tls|tcp)://(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):(?P<first>\d+)(?:-(?P<last>\d+))?"
)
SCHEMES = {"tls": "tls", "plain": "tcp"}
"""Which scheme each `hosts.security` speaks."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens: a host and the ports it may use.

    Example: `Address.parse("tls://10.0.0.2:26600-26609").at(26601)`
    """

    scheme: str
    """`tls` or `tcp`."""
    host: str
    """A name or an IP; IPv6 in brackets."""
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Address:
        found = FORM.fullmatch(text.strip())
        if not found:
            raise ConfigError(
                f'"{text}" is not an address; write tls://HOST:PORT or tls://HOST:FIRST-LAST, '
                "for example tls://10.0.0.2:26600-26609."
            )
        first = int(found["first"])
        last = int(found["last"] or first)
        if not 0 < first <= last <= 65535:
            raise ConfigError(f'"{text}": ports run from 1 to 65535, the smaller one first.')
        return cls(found["scheme"], found["host"], first, last)

    def __str__(self) -> str:
        ports = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.scheme}://{self.host}:{ports}"

    @property
    def ip(self) -> str:
        """The host as sockets take it, without brackets."""
        return self.host.strip("[]")

    @property
    def ports(self) -> range:
        return range(self.first, self.last + 1)

    def at(self, port: int) -> Address:
        return Address(self.scheme, self.host, port, port)

    def after(self, port: int | None) -> Iterator[int]:
        """The ports in order, starting behind `port` and ending with it."""
        start = 0 if port not in self.ports else self.ports.index(port) + 1  # type: ignore[arg-type]
        yield from (self.ports[(start + i) % len(self.ports)] for i in range(len(self.ports)))

    def identity(self) -> int:
        """64 bits that only this scheme, host and port have."""
        return int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:8], "big")


def listening(host: str, ports: Iterable[int], timeout: float = 1.0) -> set[int]:
    """At which of these ports anyone accepts connections; all are asked at once."""
    found: set[int] = set()
    with contextlib.ExitStack() as open_ones, selectors.DefaultSelector() as selector:
        for port in ports:
            try:
                family, kind, protocol, _, target = socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )[0]
            except OSError:
                return found
            probe = open_ones.enter_context(socket.socket(family, kind, protocol))
            probe.setblocking(False)
            probe.connect_ex(target)
            selector.register(probe, selectors.EVENT_WRITE, port)
        until = time.monotonic() + timeout
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                probe = cast(socket.socket, key.fileobj)
                selector.unregister(probe)
                if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.add(key.data)
    return found


def own_ip(towards: str, port: int) -> str:
    """Which of this machine's addresses packets to `towards` leave from; nothing is sent."""
    family, kind, protocol, _, target = socket.getaddrinfo(towards, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def free_port(host: str) -> int:
    """A port nobody uses right now."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
