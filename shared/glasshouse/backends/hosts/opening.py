"""Open the hosts that a configuration names.

Every kind is a source of hosts: it attaches one by name, lets go of it, and closes. What stands
above it, `Hosts`, knows which are there and takes one back that came again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from glasshouse.backends.hosts.security import WARNING, folder_of, tell_monarch
from glasshouse.config import HostsConfig
from glasshouse.errors import ConfigError, HostError

if TYPE_CHECKING:
    from monarch.actor import HostMesh

STOP_TIMEOUT = 15.0
"""Seconds that a host has to let go of what it runs for us."""


class Source(Protocol):
    """Where hosts come from."""

    names: tuple[str, ...]

    def attach(self, name: str) -> HostMesh:
        """The host as a mesh; a `HostError` says why it is not there."""

    def release(self, name: str, mesh: HostMesh) -> None:
        """End what we run on it; the host itself stays if it is not ours."""

    def forget(self, name: str) -> None:
        """It is lost: clear away what is left of it on our side."""

    def close(self) -> None:
        """End what was started for all of them."""


class Hosts:
    """The hosts of a run, by name, each a mesh of one host.

    Example:
        with open_hosts(config.hosts) as hosts:
            for name, mesh in hosts.meshes.items():
                mesh.spawn_procs(per_host={"procs": 1}).spawn("generator", Generator)
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names = source.names
        self.meshes: dict[str, HostMesh] = {}
        try:
            for name in self.names:
                self.meshes[name] = source.attach(name)
        except BaseException:
            self.close()
            raise

    def lose(self, name: str) -> None:
        """Its death was noticed: nothing more is sent to it."""
        if self.meshes.pop(name, None) is not None:
            self.source.forget(name)

    def rejoin(self, name: str) -> HostMesh | None:
        """The lost host if it is back, else None; asking again and again is fine."""
        if name not in self.meshes:
            try:
                self.meshes[name] = self.source.attach(name)
            except HostError:
                return None
        return self.meshes[name]

    def close(self) -> None:
        """Let go of every host. A host that died meanwhile does not keep the others waiting."""
        while self.meshes:
            name, mesh = self.meshes.popitem()
            try:
                self.source.release(name, mesh)
            except Exception as error:  # it is going away: whatever it says, the others are next
                print(f"The host {name} was not released: {error}", file=sys.stderr)
        self.source.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def open_hosts(config: HostsConfig, warn: Callable[[str], None] | None = None) -> Hosts:
    """The hosts that the section `hosts` of a configuration names, all of them attached.

    Monarch takes its settings and its transport once: open hosts before any actor is spawned.
    """
    check(config)
    if config.kind in ("addresses", "slurm", "kubernetes") and config.security == "plain":
        (warn or _to_stderr)(WARNING)
    secured = config.kind == "addresses" and config.security == "tls"
    if config.kind != "local":
        tell_monarch(
            folder_of(config.certificates) if secured else None,
            HYPERACTOR_MESH_ATTACH_CONFIG_TIMEOUT=f"{config.attach_timeout}s",
        )
    import monarch.actor

    monarch.actor.unhandled_fault_hook = lambda failure: None  # the default ends this process
    return Hosts(_source(config))


def check(config: HostsConfig) -> None:
    """What can be said before anything starts, as a sentence."""
    if find_spec("monarch") is None:  # not imported here: it would read its settings too early
        raise ConfigError('Hosts need torchmonarch: pip install "glasshouse[monarch]".')
    if config.kind == "addresses":
        from glasshouse.backends.hosts.attached import check_addresses

        check_addresses(config)
        if config.security == "tls":
            folder_of(config.certificates)
    elif config.kind in ("slurm", "kubernetes") and config.security != "plain":
        raise ConfigError(
            f"Monarch's {config.kind} jobs talk plain TCP: whoever reaches a port can run code. Either "
            f"start workers with certificates yourself (docs/examples/{config.kind}-tls.* does it) and "
            "use hosts.kind=addresses, or, on a network that only you can reach, set "
            "hosts.security=plain."
        )


def _source(config: HostsConfig) -> Source:
    if config.kind == "addresses":
        from glasshouse.backends.hosts.attached import Attached

        return Attached(config)
    if config.kind == "local":
        from glasshouse.backends.hosts.local import ThisHost

        return ThisHost()
    if config.kind == "processes":
        from glasshouse.backends.hosts.local import Processes

        return Processes(config.count)
    from glasshouse.backends.hosts.schedulers import Scheduled, kubernetes_job, slurm_job

    job = slurm_job(config) if config.kind == "slurm" else kubernetes_job(config)
    return Scheduled(job, config)


def _to_stderr(text: str) -> None:
    print(f"Warning: {text}", file=sys.stderr)
