"""Open the hosts that the section `hosts` of a config names.

Each `hosts.kind` has a `HostProvider`, which attaches a host by name and releases it. `HostPool` uses
it to track which hosts are connected and to reconnect a lost one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from glasshouse.config.schema import HostsConfig
from glasshouse.distributed.hosts.security import require_certificate_dir, tls_environment
from glasshouse.distributed.monarch_settings import configure_monarch
from glasshouse.errors import ConfigError, HostError
from glasshouse.extras import install_command

if TYPE_CHECKING:
    from monarch.actor import HostMesh

STOP_TIMEOUT = 15.0
"""Seconds that a host has to end the processes of a run."""


class HostProvider(Protocol):
    """Where hosts come from."""

    names: tuple[str, ...]

    def attach(self, name: str) -> HostMesh:
        """Return the host as a mesh; raise `HostError` if it cannot be reached."""

    def release(self, name: str, mesh: HostMesh) -> None:
        """End the run's processes on a host, and the host itself if this run started it."""

    def forget(self, name: str) -> None:
        """Free what this side holds for a lost host."""

    def close(self) -> None:
        """End everything that was started for all hosts."""


class HostPool:
    """The hosts of a run by name, each a mesh of one host.

    Example:
        with open_hosts(config.hosts) as hosts:
            for name, mesh in hosts.meshes.items():
                mesh.spawn_procs(per_host={"procs": 1}).spawn("generator", GeneratorActor)
    """

    def __init__(self, provider: HostProvider) -> None:
        self.provider = provider
        self.names = provider.names
        self.meshes: dict[str, HostMesh] = {}
        """The hosts that are connected."""
        try:
            for name in self.names:
                self.meshes[name] = provider.attach(name)
        except BaseException:
            self.close()
            raise

    def mark_lost(self, name: str) -> None:
        """Remove a host; nothing more is sent to it."""
        if self.meshes.pop(name, None) is not None:
            self.provider.forget(name)

    def reconnect(self, name: str) -> HostMesh | None:
        """Return the host, attached again if it was lost; None if it cannot be reached yet."""
        if name not in self.meshes:
            try:
                self.meshes[name] = self.provider.attach(name)
            except HostError:
                return None
        return self.meshes[name]

    def close(self) -> None:
        """Release every host; one that fails does not prevent the release of the others."""
        while self.meshes:
            name, mesh = self.meshes.popitem()
            try:
                self.provider.release(name, mesh)
            except Exception as error:
                print(f"The host {name} was not released: {error}", file=sys.stderr)
        self.provider.close()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def open_hosts(config: HostsConfig) -> HostPool:
    """Attach all hosts that the section `hosts` of a config names.

    Monarch reads its settings and chooses its transport once: open hosts before spawning actors.
    """
    validate_hosts_config(config)
    if config.kind != "local":
        settings = {"HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT": f"{config.attach_timeout}s"}
        if config.kind == "addresses":
            settings |= tls_environment(require_certificate_dir(config.certificates))
        configure_monarch(several_hosts=True, extra=settings)
    import monarch.actor

    monarch.actor.unhandled_fault_hook = lambda failure: None  # the default ends this process
    return HostPool(_make_provider(config))


def validate_hosts_config(config: HostsConfig) -> None:
    """Report errors in the config before anything is started."""
    if find_spec("monarch") is None:  # not imported here: it would read its settings too early
        raise ConfigError(f"Hosts need torchmonarch: {install_command('monarch')}")
    if config.kind == "addresses":
        from glasshouse.distributed.hosts.worker_provider import validate_addresses

        validate_addresses(config)
        require_certificate_dir(config.certificates)


def _make_provider(config: HostsConfig) -> HostProvider:
    if config.kind == "addresses":
        from glasshouse.distributed.hosts.worker_provider import WorkerProvider

        return WorkerProvider(config)
    if config.kind == "local":
        from glasshouse.distributed.hosts.local_providers import LocalHostProvider

        return LocalHostProvider()
    from glasshouse.distributed.hosts.local_providers import ProcessHostProvider

    return ProcessHostProvider(config.count)
