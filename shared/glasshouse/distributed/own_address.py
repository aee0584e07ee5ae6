"""The addresses and ports of this machine."""

from __future__ import annotations

import socket


def own_ip(towards: str, port: int) -> str:
    """Return the address of this machine from which `towards` is reached; nothing is sent."""
    family, kind, protocol, _, target = socket.getaddrinfo(towards, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def free_port(host: str) -> int:
    """Return a port that is free at the moment."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
