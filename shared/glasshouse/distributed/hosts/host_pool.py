"""The hosts of a run: workers at `hosts.addresses`, attached over mutual TLS.

Generator n runs on host n modulo the number of hosts. When a host is lost, its generators wait for it while those of
the other hosts do the work.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.config.schema import HostsConfig
from glasshouse.distributed.hosts.certificates import read_certificate_hosts, tls_environment
from glasshouse.distributed.hosts.discovery import Address, listen_at, request_worker_port
from glasshouse.distributed.monarch_settings import SEVERAL_HOSTS, configure_monarch
from glasshouse.errors import ConfigError, HostError, RunError, install_command

if TYPE_CHECKING:
    from monarch.actor import HostMesh

    from glasshouse.distributed.backend import EventSink

STOP_TIMEOUT = 15.0
"""Seconds that a host has to end the processes of a run."""
RECONNECT_INTERVAL = 1.0
"""Seconds between two attempts to reach a lost host."""


class HostPool:
    """The hosts of a run by name, each a mesh of one host: losing one does not affect the others.

    Monarch reads its settings and chooses its transport once: open hosts before spawning actors.

    Example:
        with contextlib.closing(HostPool(config.hosts)) as hosts:
            hosts.meshes["10.0.0.2"].spawn_procs(per_host={"procs": 1})
    """

    def __init__(self, config: HostsConfig) -> None:
        self.addresses = {address.host: address for address in parse_addresses(config)}
        self.names = tuple(self.addresses)
        self.config, self.folder = config, Path(config.certificates)
        settings = {"HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT": f"{config.attach_timeout}s"}
        configure_monarch(SEVERAL_HOSTS, settings | tls_environment(self.folder))
        import monarch.actor

        monarch.actor.unhandled_fault_hook = lambda failure: None  # the default ends this process
        address = config.controller_address or self._own_address()
        try:
            monarch.actor.enable_transport(address)
        except Exception as error:
            raise ConfigError(f"hosts.controller_address {address}: {error}") from None
        self.used_ports: dict[str, list[int]] = {name: [] for name in self.names}
        """The ports at which each worker was attached, the latest last."""
        self.meshes: dict[str, HostMesh] = {}
        """The hosts that are connected."""
        self.assigned: dict[int, HostMesh] = {}
        """The mesh on which each generator was last started."""
        self.lock, self.stopping = threading.Lock(), threading.Event()
        self.all_lost_since: float | None = None
        try:
            for name in self.names:
                self.meshes[name] = self.attach(name)
        except BaseException:
            self.close()
            raise

    def assign(self, number: int, event: EventSink) -> tuple[HostMesh, str]:
        """Return the host of generator n and its name; blocks while that host is lost."""
        name = self.names[number % len(self.names)]
        with self.lock:
            # A generator that asks a second time has died, or its host has: the old connection may block, so the host
            # is attached again. The other generators of the host then find it attached.
            if number in self.assigned and self.meshes.get(name) is self.assigned[number]:
                del self.meshes[
                    name
                ]  # nothing more is sent to it; the worker returns at another port
                text = f"Host {name}, or generator {number} on it, is lost; the others continue."
                event("host", host=name, status="lost", generator=number, text=text)
        while not self.stopping.is_set():
            with self.lock:
                with contextlib.suppress(HostError):  # it cannot be reached yet
                    if name not in self.meshes:
                        self.meshes[name] = self.attach(name)
                        text = f"Host {name} is connected again."
                        event("host", host=name, status="reconnected", text=text)
                    self.all_lost_since, self.assigned[number] = None, self.meshes[name]
                    return self.meshes[name], name
                self._check_reconnect_timeout(name)
            self.stopping.wait(RECONNECT_INTERVAL)
        raise HostError("The run ended.")

    def _check_reconnect_timeout(self, name: str) -> None:
        now = time.monotonic()
        self.all_lost_since = None if self.meshes else self.all_lost_since or now
        if self.all_lost_since and now - self.all_lost_since >= self.config.reconnect_timeout:
            raise RunError(
                f"All hosts are lost ({name} was the last), and none came back within "
                f"{self.config.reconnect_timeout:g} s (hosts.reconnect_timeout). Run the same command "
                "again to resume from the last checkpoint."
            )

    def close(self) -> None:
        """End the run's processes on every host; the workers keep running."""
        while self.meshes:
            name, mesh = self.meshes.popitem()
            try:
                mesh.stop().get(STOP_TIMEOUT)
            except Exception as error:
                print(f"The processes on host {name} were not ended: {error}", file=sys.stderr)

    def attach(self, name: str) -> HostMesh:
        """Attach a worker. The first attachment waits for it; later ones try once."""
        from monarch.actor import attach_to_workers

        worker = self.addresses[name].with_port(self._find_port(name))
        mesh = attach_to_workers(
            ca="trust_all_connections",  # ignored: the tls:// address decides
            workers=[worker.for_monarch()],
            name=f"host_{worker.identity():x}",
        )
        self.used_ports[name].append(worker.first)
        try:
            mesh.initialized.get(self.config.attach_timeout)
        except Exception as error:
            raise HostError(f"The worker at {worker} did not answer: {error}") from None
        return mesh

    def _find_port(self, name: str) -> int:
        """Return the worker's current port, one at which it was not attached recently."""
        address, used = self.addresses[name], self.used_ports[name]
        avoid = used[1 - len(address.worker_ports) :]
        deadline = time.monotonic() + (0 if used else self.config.attach_timeout)
        while True:
            try:
                return request_worker_port(address, self.folder, avoid)
            except HostError:
                raise
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise HostError(
                        f"No worker answers at {address}: {error}. Start one on that machine: "
                        f"`glasshouse hosts worker --address {address}`. If one is running, check the "
                        "firewall."
                    ) from None
            time.sleep(0.2)

    def _own_address(self) -> str:
        """Return the address of this host's certificate, which workers verify, at a free port."""
        name = next(iter(read_certificate_hosts(self.folder)), "")
        try:
            with listen_at(name, 0) as probe:
                port = probe.getsockname()[1]
        except OSError as error:
            raise HostError(
                f'This machine cannot listen at "{name}", the name in the certificate of {self.folder}: '
                f"{error}. Use this machine's folder, or set hosts.controller_address."
            ) from None
        return f"tls://[{name}]:{port}" if ":" in name else f"tls://{name}:{port}"


def parse_addresses(config: HostsConfig) -> list[Address]:
    """Return the workers' addresses; report errors in the config before anything is started."""
    if find_spec("monarch") is None:  # not imported here: it would read its settings too early
        raise ConfigError(f"Hosts need torchmonarch: {install_command('monarch')}")
    addresses = [Address.parse(text) for text in config.addresses]
    if not addresses:
        raise ConfigError(
            "hosts.addresses is empty; write for example hosts.addresses=[tls://10.0.0.2:26600-26609]."
        )
    names = [address.host for address in addresses]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"hosts.addresses names {', '.join(repeated)} more than once.")
    if not config.certificates:
        raise ConfigError(
            "hosts.certificates is empty, but connections between hosts use TLS. Set it to this host's "
            "folder (`glasshouse hosts certificates` creates them)."
        )
    return addresses
