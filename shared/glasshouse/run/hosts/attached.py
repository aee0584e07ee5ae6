"""Hosts that are there already: workers at addresses, over TLS or plain TCP."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.config import HostsConfig
from glasshouse.errors import ConfigError, HostError
from glasshouse.run.hosts.address import SCHEMES, Address, free_port, listening, own_ip
from glasshouse.run.hosts.open import STOP_TIMEOUT
from glasshouse.run.hosts.security import CA, CERTIFICATE, KEY, folder_of

if TYPE_CHECKING:
    from monarch.actor import HostMesh

KNOCK_TIMEOUT = 2.0
"""Seconds until a worker that says nothing has accepted our certificate: a refusal comes at once."""


class Attached:
    """Workers at addresses. The first attachment waits for them; a later one only looks."""

    def __init__(self, config: HostsConfig) -> None:
        from monarch.actor import enable_transport

        self.addresses = {a.host: a for a in map(Address.parse, config.addresses)}
        self.names = tuple(self.addresses)
        self.folder = folder_of(config.certificates) if config.security == "tls" else None
        self.timeout = config.attach_timeout
        self.ports: dict[str, int] = {}
        controller = config.controller or own_address(next(iter(self.addresses.values())))
        if self.folder is not None:
            check_folder(self.folder)
        enable_transport(controller)

    def attach(self, name: str) -> HostMesh:
        from monarch.actor import attach_to_workers

        address = self.addresses[name]
        before = self.ports.get(name)
        port = self._find(address, before, wait=self.timeout if before is None else 0)
        at = address.at(port)
        knock(at, self.folder)
        mesh = attach_to_workers(
            ca="trust_all_connections",  # the TLS of the address decides; this argument does not
            workers=[with_identity(at)],
            name=f"host_{at.identity():x}",
        )
        self.ports[name] = port
        try:
            mesh.initialized.get(self.timeout)
        except Exception as error:
            raise HostError(f"The worker at {at} did not answer: {error}") from None
        return mesh

    def release(self, name: str, mesh: HostMesh) -> None:
        mesh.stop().get(STOP_TIMEOUT)

    def answers(self, name: str) -> bool:
        return bool(listening(self.addresses[name].ip, [self.ports[name]]))

    def forget(self, name: str) -> None:
        """Its port stays remembered: it comes back at another one."""

    def close(self) -> None:
        """The workers are not ours to end."""

    def _find(self, address: Address, before: int | None, wait: float) -> int:
        """The port of its range at which the worker listens, any other before the last one."""
        until = time.monotonic() + wait
        while True:
            there = listening(address.ip, address.ports)
            if there:
                return next(port for port in address.after(before) if port in there)
            if time.monotonic() >= until:
                break
            time.sleep(0.2)
        raise HostError(
            f"No worker listens at {address}. Start one there: `glasshouse hosts worker --address "
            f"{address}`; if one runs, a firewall may stand between."
        )


def with_identity(address: Address) -> str:
    """The address as Monarch takes it, with the identity that worker and controller agree on."""
    from monarch.actor import ProcId, Uid

    return f"{ProcId(Uid.instance_from_value(address.identity(), 'service'))}@{address}"


def own_address(worker: Address) -> str:
    """An address of this machine that the worker can reach, at a free port."""
    try:
        ip = own_ip(worker.ip, worker.first)
    except OSError as error:
        raise HostError(
            f"This machine has no way to {worker.host}: {error}. Set hosts.controller, or mend the "
            "address in hosts.addresses."
        ) from None
    host = f"[{ip}]" if ":" in ip else ip
    return f"{worker.scheme}://{host}:{free_port(ip)}"


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
    given = addresses + ([Address.parse(config.controller)] if config.controller else [])
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


def knock(address: Address, folder: Path | None) -> None:
    """Show our certificate and look at theirs, so that a refusal is a sentence and comes at once.

    With TLS 1.3 a server refuses a client only after the handshake: one has to wait for it.
    """
    if folder is None:
        return
    context = ssl.create_default_context(cafile=str(folder / CA))
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    try:
        with (
            socket.create_connection((address.ip, address.first), KNOCK_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=address.ip) as secured,
        ):
            secured.settimeout(0.2)
            try:
                secured.recv(1)
            except TimeoutError:
                return
    except ssl.SSLCertVerificationError as error:
        raise HostError(
            f"The worker at {address} is not trusted: {error.verify_message}. Its certificate must "
            f"name {address.host} and be of the authority in {folder / CA}."
        ) from None
    except ssl.SSLError as error:
        raise HostError(
            f"The worker at {address} refused this host's certificate ({error.reason or error}). Both "
            f"must be of the same authority: {folder} is from another, or has run out."
        ) from None
    except OSError as error:
        raise HostError(f"The worker at {address} hung up: {error}.") from None


def check_folder(folder: Path) -> None:
    """Certificate and key belong together; Monarch would say so in a stack trace."""
    try:
        ssl.create_default_context(cafile=str(folder / CA)).load_cert_chain(
            folder / CERTIFICATE, folder / KEY
        )
    except (ssl.SSLError, OSError) as error:
        raise HostError(f"The certificates in {folder} cannot be used: {error}.") from None
