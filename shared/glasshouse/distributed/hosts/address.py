"""Addresses of workers: a host and a range of ports, as in `tls://10.0.0.2:26600-26609`.

The first port is for discovery (see `discovery`), and the worker listens at one of the others. A worker's identity is
a hash of its address, so both sides can compute it.
"""

from __future__ import annotations

import hashlib
import re
import socket
from dataclasses import dataclass

from glasshouse.errors import ConfigError

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
