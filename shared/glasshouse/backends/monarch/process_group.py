"""How the processes of a learner find each other and connect (torch.distributed).

On one host they meet through a file. On several, the controller serves a store at the address at
which the hosts reach it; the ranks then connect to each other, each through the network interface
that leads to that address.
"""

from __future__ import annotations

import os
import platform
import socket
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from glasshouse.backends.monarch.runtime import stderr_to_null
from glasshouse.backends.own_address import find_interface, own_ip
from glasshouse.errors import HostError

GROUP_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the others; the controller notices a dead one much earlier."""
CONNECT_TIMEOUT = timedelta(seconds=20)
"""How long a rank tries to reach the controller's store, which is there before the rank starts."""


class Rendezvous(NamedTuple):
    """Where the ranks meet: a file on one host, else an address."""

    file: str = ""
    host: str = ""
    port: int = 0


def serve_store(host: str) -> dist.TCPStore:
    """Serve the ranks' store at one address of this machine, at a free port."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        server = socket.create_server((host, 0), family=family)
    except OSError as error:
        raise HostError(
            f"The ranks of hosts.learners meet at {host}, but this machine cannot listen there: "
            f"{error}. Set hosts.controller_address to an address of this machine."
        ) from None
    port = server.getsockname()[1]
    with stderr_to_null():  # it warns if the address has no name
        return dist.TCPStore(
            host, port, is_master=True, master_listen_fd=server.detach(), wait_for_workers=False
        )


def join_process_group(
    rendezvous: Rendezvous, rank: int, world_size: int, backend: str = "gloo"
) -> None:
    """Join the other learners; the file of a rendezvous is not needed after this returns."""
    store: dist.Store
    if rendezvous.host:
        _choose_interface(rendezvous)
        store = _connect_store(rendezvous, rank)
    else:
        store = dist.FileStore(rendezvous.file, world_size)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=GROUP_TIMEOUT
    )
    dist.barrier()


def _choose_interface(rendezvous: Rendezvous) -> None:
    """Make gloo and NCCL use the interface that leads to the controller; by default gloo uses the
    address of the host's name, which is often 127.0.0.1."""
    ip = own_ip(rendezvous.host, rendezvous.port)
    interface = find_interface(ip)
    if not interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        raise HostError(
            f"No network interface of {platform.node()} has the address {ip}, from which it reaches "
            "the run. Set GLOO_SOCKET_IFNAME to the interface's name there, and restart the worker."
        )
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, interface)


def _connect_store(rendezvous: Rendezvous, rank: int) -> dist.TCPStore:
    host, port = rendezvous.host, rendezvous.port
    try:
        store = dist.TCPStore(host, port, timeout=CONNECT_TIMEOUT, wait_for_workers=False)
    except dist.DistNetworkError:
        raise HostError(
            f"Rank {rank} of the learner, on {platform.node()}, does not reach the run at {host}, port "
            f"{port}. With hosts.learners all hosts need free TCP connections to each other: check the "
            "firewalls."
        ) from None
    store.set_timeout(GROUP_TIMEOUT)
    return store
