"""Hosts on which `glasshouse hosts worker` already runs: attach to them over TLS."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.config.schema import HostsConfig
from glasshouse.distributed.hosts.address import Address
from glasshouse.distributed.hosts.discovery import request_worker_port, validate_certificate_dir
from glasshouse.distributed.hosts.host_pool import STOP_TIMEOUT
from glasshouse.distributed.hosts.security import read_certificate_name, require_certificate_dir
from glasshouse.distributed.own_address import free_port, own_ip
from glasshouse.errors import ConfigError, HostError

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class WorkerProvider:
    """Workers at addresses. The first attachment of each waits for it; later ones try once."""

    def __init__(self, config: HostsConfig) -> None:
        from monarch.actor import enable_transport

        self.addresses = {a.host: a for a in map(Address.parse, config.addresses)}
        self.names = tuple(self.addresses)
        self.folder = require_certificate_dir(config.certificates)
        self.timeout = config.attach_timeout
        self.used_ports: dict[str, list[int]] = {name: [] for name in self.names}
        """The ports at which each worker was attached, the latest last."""
        validate_certificate_dir(self.folder)
        first = next(iter(self.addresses.values()))
        own = config.controller_address or choose_controller_address(first, self.folder)
        enable_transport(own)

    def attach(self, name: str) -> HostMesh:
        from monarch.actor import attach_to_workers

        address, used = self.addresses[name], self.used_ports[name]
        worker = address.with_port(self._find_port(address, used))
        mesh = attach_to_workers(
            ca="trust_all_connections",  # ignored: the tls:// address decides
            workers=[monarch_address(worker)],
            name=f"host_{worker.identity():x}",
        )
        used.append(worker.first)
        try:
            mesh.initialized.get(self.timeout)
        except Exception as error:
            raise HostError(f"The worker at {worker} did not answer: {error}") from None
        return mesh

    def release(self, name: str, mesh: HostMesh) -> None:
        mesh.stop().get(STOP_TIMEOUT)

    def forget(self, name: str) -> None:
        """Keep its port in `used_ports`: the worker returns at another one."""

    def close(self) -> None:
        """The workers keep running."""

    def _find_port(self, address: Address, used: list[int]) -> int:
        """Return the worker's current port, one at which it was not attached recently."""
        if len(address.ports) == 1:
            return address.first
        avoid = used[-(len(address.ports) - 2) :] if len(address.ports) > 2 else []
        deadline = time.monotonic() + (0 if used else self.timeout)
        while True:
            try:
                return request_worker_port(address, self.folder, avoid)
            except HostError:
                raise
            except OSError as error:
                reason = error
            if time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        raise HostError(
            f"No worker answers at {address}: {reason}. Start one on that machine: `glasshouse hosts "
            f"worker --address {address}`. If one is running, check the firewall."
        )


def monarch_address(address: Address) -> str:
    """Format an address for Monarch, with the identity that worker and controller agree on."""
    from monarch.actor import ProcId, Uid

    return f"{ProcId(Uid.instance_from_value(address.identity(), 'service'))}@{address}"


def choose_controller_address(worker: Address, folder: Path) -> str:
    """Choose an address of this machine that the worker can reach, at a free port.

    It is the address in this host's certificate, because the worker verifies it.
    """
    try:
        ip = read_certificate_name(folder) or own_ip(worker.ip, worker.first)
        port = free_port(ip)
    except OSError as error:
        raise HostError(
            f"No address of this machine is known that the worker {worker} could reach: {error}. "
            f"Check {folder}, or set hosts.controller_address."
        ) from None
    host = f"[{ip}]" if ":" in ip else ip
    return f"tls://{host}:{port}"


def validate_addresses(config: HostsConfig) -> None:
    """Check that there are addresses, each host once."""
    addresses = [Address.parse(text) for text in config.addresses]
    if not addresses:
        raise ConfigError(
            "hosts.kind is addresses but hosts.addresses is empty; write for example "
            "hosts.addresses=[tls://10.0.0.2:26600-26609]."
        )
    names = [address.host for address in addresses]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"hosts.addresses names {', '.join(repeated)} more than once.")
    if config.controller_address:
        Address.parse(config.controller_address)
