"""Hosts that are there already: workers at addresses, over TLS or plain TCP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.backends.hosts.address import SCHEMES, Address, free_port, own_ip
from glasshouse.backends.hosts.discovery import ask, check_folder
from glasshouse.backends.hosts.opening import STOP_TIMEOUT
from glasshouse.backends.hosts.security import folder_of, name_of
from glasshouse.config import HostsConfig
from glasshouse.errors import ConfigError, HostError

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class Attached:
    """Workers at addresses. The first attachment waits for them; a later one only looks."""

    def __init__(self, config: HostsConfig) -> None:
        from monarch.actor import enable_transport

        self.addresses = {a.host: a for a in map(Address.parse, config.addresses)}
        self.names = tuple(self.addresses)
        self.folder = folder_of(config.certificates) if config.security == "tls" else None
        self.timeout = config.attach_timeout
        self.used: dict[str, list[int]] = {name: [] for name in self.names}
        """The ports at which each has been, the last one last."""
        if self.folder is not None:
            check_folder(self.folder)
        first = next(iter(self.addresses.values()))
        enable_transport(config.controller_address or own_address(first, self.folder))

    def attach(self, name: str) -> HostMesh:
        from monarch.actor import attach_to_workers

        address, used = self.addresses[name], self.used[name]
        at = address.at(self._find(address, used))
        mesh = attach_to_workers(
            ca="trust_all_connections",  # the TLS of the address decides; this argument does not
            workers=[with_identity(at)],
            name=f"host_{at.identity():x}",
        )
        used.append(at.first)
        try:
            mesh.initialized.get(self.timeout)
        except Exception as error:
            raise HostError(f"The worker at {at} did not answer: {error}") from None
        return mesh

    def release(self, name: str, mesh: HostMesh) -> None:
        mesh.stop().get(STOP_TIMEOUT)

    def forget(self, name: str) -> None:
        """Its port stays remembered: it comes back at another one."""

    def close(self) -> None:
        """The workers are not ours to end."""

    def _find(self, address: Address, used: list[int]) -> int:
        """The port at which the worker is and has not been before."""
        if len(address.ports) == 1:
            return address.first
        avoid = used[-(len(address.ports) - 2) :] if len(address.ports) > 2 else []
        until = time.monotonic() + (0 if used else self.timeout)
        while True:
            try:
                return ask(address, self.folder, avoid)
            except HostError:
                raise
            except OSError as error:
                why = error
            if time.monotonic() >= until:
                break
            time.sleep(0.2)
        raise HostError(
            f"No worker answers at {address}: {why}. Start one there: `glasshouse hosts worker "
            f"--address {address}`; if one runs, a firewall may stand between."
        )


def with_identity(address: Address) -> str:
    """The address as Monarch takes it, with the identity that worker and controller agree on."""
    from monarch.actor import ProcId, Uid

    return f"{ProcId(Uid.instance_from_value(address.identity(), 'service'))}@{address}"


def own_address(worker: Address, folder: Path | None) -> str:
    """An address of this machine that the worker can reach, at a free port: the one that our
    certificate names, for the worker will look at it."""
    try:
        ip = (name_of(folder) if folder else "") or own_ip(worker.ip, worker.first)
        port = free_port(ip)
    except OSError as error:
        raise HostError(
            f"The workers find no way back to this machine: {error}. Is {folder or worker.host} right? "
            "Else set hosts.controller_address."
        ) from None
    host = f"[{ip}]" if ":" in ip else ip
    return f"{worker.scheme}://{host}:{port}"


def check_addresses(config: HostsConfig) -> None:
    """Addresses are there, each host once, and of the security that was asked for."""
    addresses = [Address.parse(text) for text in config.addresses]
    if not addresses:
        raise ConfigError(
            "hosts.kind is addresses but hosts.addresses is empty; write for example "
            "hosts.addresses=[tls://10.0.0.2:26600-26609]."
        )
    twice = {a.host for a in addresses if sum(a.host == b.host for b in addresses) > 1}
    if twice:
        raise ConfigError(f"hosts.addresses names {', '.join(sorted(twice))} more than once.")
    wanted = SCHEMES[config.security]
    given = addresses + (
        [Address.parse(config.controller_address)] if config.controller_address else []
    )
    for address in given:
        if address.scheme != wanted:
            raise ConfigError(
                f"{address} does not fit hosts.security={config.security}, which speaks {wanted}://."
                + (
                    " Plain TCP has to be asked for by name: hosts.security=plain."
                    if address.scheme == "tcp"
                    else ""
                )
            )
