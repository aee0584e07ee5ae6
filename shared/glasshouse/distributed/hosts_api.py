"""Train on several machines: certificates, workers, checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError

__all__ = [
    "authority_key",
    "check_hosts",
    "create_certificates",
    "run_worker",
]


def create_certificates(out: Path, hosts: list[str], days: int = 365) -> list[Path]:
    """Create a certificate authority and one folder per host for mutual TLS."""
    from glasshouse.distributed.hosts.certificates import create_certificates as create

    return create(out, hosts, days)


def authority_key(out: Path) -> Path:
    """The file that signs further hosts."""
    from glasshouse.distributed.hosts.certificates import CA_KEY

    return out / CA_KEY


def run_worker(
    address: str,
    certificates: Path,
    say: Callable[[str], None],
    *,
    listen_any: bool = False,
) -> int:
    """Offer this machine as a host until it is stopped; returns an exit code."""
    from glasshouse.distributed.hosts.address import Address
    from glasshouse.distributed.hosts.worker import run_worker as run

    return run(Address.parse(address), certificates, say, listen_any=listen_any)


def check_hosts(config: Config, megabytes: int = 32) -> tuple[Any, list[str]]:
    """Connect to every host and measure latency and bandwidth; returns a table for the terminal, and
    a sentence for each difference of versions."""
    from glasshouse.distributed.hosts.host_pool import open_hosts

    if megabytes < 1:
        raise ConfigError(f"--megabytes is {megabytes}; it must be at least 1.")
    with open_hosts(config.hosts) as hosts:
        from glasshouse.distributed.hosts.host_check import (
            host_table,
            measure_hosts,
            version_differences,
        )

        results = measure_hosts(hosts, megabytes)
    return host_table(results), list(version_differences(results))
