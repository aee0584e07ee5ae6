"""The addresses, ports and network interfaces of this machine."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""


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


def find_interface(ip: str) -> str:
    """Return the name of the interface that has the address, eth0 for example; empty if none has it."""
    address = ipaddress.ip_address(ip)
    if address.is_loopback:
        return "lo"
    if address.version == 6:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        rows = [line.split() for line in lines]
        return next((row[-1] for row in rows if bytes.fromhex(row[0]) == address.packed), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if reply[20:24] == address.packed:
                return name
    return ""
