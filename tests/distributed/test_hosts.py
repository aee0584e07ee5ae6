"""Hosts without workers: addresses, certificates, discovery, refused configs, host assignment."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("monarch")

from cryptography import x509
from cryptography.x509 import verification

from glasshouse.cli.app import main
from glasshouse.distributed.hosts.address import Address
from glasshouse.distributed.hosts.certificates import create_certificates, tls_environment
from glasshouse.errors import ConfigError, HostError, RunError


@pytest.fixture(autouse=True)
def monarch_settings_restored() -> Iterator[None]:
    """Undo the settings that a test makes in the environment."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if "monarch" in sys.modules:
        from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

        reload_config_from_env()


# --- addresses ---------------------------------------------------------------------------------


def test_addresses_are_parsed_and_formatted() -> None:
    address = Address.parse("tls://10.0.0.2:26600-26609")
    assert (address.ip, address.worker_ports) == ("10.0.0.2", range(26601, 26610))
    assert str(address) == "tls://10.0.0.2:26600-26609"
    assert str(address.with_port(26603)) == "tls://10.0.0.2:26603"
    assert Address.parse("tls://[fe80::1]:26600").ip == "fe80::1"


@pytest.mark.parametrize(
    "text",
    ["10.0.0.2", "tls://:1", "tls://a:0", "tls://a:2-1", "tls://a:70000", "http://a:1",
     "tls://a b:1", "tls://a:1@tls://b:1", ""],
)  # fmt: skip
def test_an_invalid_address_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"address|ports"):
        Address.parse(text)


def test_every_port_has_a_different_identity() -> None:
    address = Address.parse("tls://10.0.0.2:26600-26699")
    assert len({address.with_port(port).identity() for port in address.worker_ports}) == 99
    assert address.with_port(26600).identity() == Address.parse("tls://10.0.0.2:26600").identity()


# --- certificates ------------------------------------------------------------------------------


def verify(folder: Path, ca: Path, subject: x509.GeneralName) -> None:
    """Verify a certificate as a TLS server and as a TLS client would."""
    certificate = x509.load_pem_x509_certificate((folder / "host.pem").read_bytes())
    store = verification.Store([x509.load_pem_x509_certificate(ca.read_bytes())])
    builder = verification.PolicyBuilder().store(store)
    builder.build_server_verifier(subject).verify(certificate, [])
    assert builder.build_client_verifier().verify(certificate, []).subjects == [subject]


def test_certificates_are_private_verify_and_are_never_overwritten(tmp_path: Path) -> None:
    import ipaddress

    out = tmp_path / "certificates"
    one, two = create_certificates(out, ["10.0.0.1", "node7.example.org"])
    for key in (out / "ca.key", one / "host.key", two / "host.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    ip = x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
    verify(one, out / "ca.pem", ip)
    verify(two, out / "ca.pem", x509.DNSName("node7.example.org"))
    with pytest.raises(verification.VerificationError):
        verify(two, out / "ca.pem", ip)
    before = (one / "host.pem").read_bytes(), (out / "ca.pem").read_bytes()
    with pytest.raises(HostError, match="exists already"):
        create_certificates(out, ["10.0.0.3", "10.0.0.1"])
    assert not (out / "10.0.0.3").exists()
    create_certificates(out, ["10.0.0.3"])  # signed by the same CA
    assert ((one / "host.pem").read_bytes(), (out / "ca.pem").read_bytes()) == before
    assert (out / "10.0.0.3" / "ca.pem").read_bytes() == before[1]
    verify(out / "10.0.0.3", one / "ca.pem", x509.IPAddress(ipaddress.ip_address("10.0.0.3")))


def test_half_a_ca_is_refused(tmp_path: Path) -> None:
    create_certificates(tmp_path, ["10.0.0.1"])
    (tmp_path / "ca.key").unlink()
    with pytest.raises(HostError, match=r"ca\.key"):
        create_certificates(tmp_path, ["10.0.0.2"])


@pytest.mark.parametrize(
    "host", ["../escape", "a/b", "", "-x", "a..b", "x,DNS:y", "0.0.0.0", "[::]"]
)
def test_an_invalid_host_gets_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError):
        create_certificates(tmp_path / "certificates", [host])
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_missing_file_or_a_readable_key_is_refused(tmp_path: Path) -> None:
    (folder,) = create_certificates(tmp_path, ["10.0.0.1"])
    (folder / "host.key").chmod(0o644)
    with pytest.raises(HostError, match="chmod 600"):
        tls_environment(folder)
    (folder / "host.key").unlink()
    with pytest.raises(HostError, match=r"no host\.key"):
        tls_environment(folder)


# --- refused configs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "hosts.addresses is empty"),
        (["addresses=[tcp://10.0.0.2:1]"], "not an address"),
        (["addresses=[tls://10.0.0.2:1]"], "hosts.certificates is empty"),
        (["addresses=[tls://a:1,tls://a:2]"], "more than once"),
    ],
)
def test_an_unprotected_or_impossible_run_is_refused(
    overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hosts", "check", *[f"hosts.{o}" for o in overrides]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "tcp://127.0.0.1:26600", "--certificates", "x"], "not an address"),
        (["--address", "tls://127.0.0.1:26600", "--certificates", "/nowhere"], "no ca.pem"),
    ],
)
def test_an_unprotected_worker_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hosts", "worker", *arguments]) == 2
    assert message in capsys.readouterr().err


# --- host assignment ---------------------------------------------------------------------------


class FakePool:
    """Hosts "a" and "b"; those in `unreachable` cannot be attached. A mesh is a text."""

    names = ("a", "b")

    def __init__(self) -> None:
        self.meshes = {"a": "a0", "b": "b0"}
        self.unreachable: set[str] = set()
        self.attached = 0

    def drop(self, name: str) -> None:
        self.meshes.pop(name, None)

    def reconnect(self, name: str) -> Any:
        if name not in self.meshes and name not in self.unreachable:
            self.attached += 1
            self.meshes[name] = f"{name}{self.attached}"
        return self.meshes.get(name)


def test_generators_wait_for_their_lost_host_and_follow_it_when_it_reconnects() -> None:
    from glasshouse.distributed.hosts.multi_host import HostAssignment

    pool, statuses = FakePool(), list[str]()
    assign = HostAssignment(pool, 60, lambda kind, **details: statuses.append(details["status"]))
    assert [assign(n).mesh for n in range(4)] == ["a0", "b0", "a0", "b0"]
    pool.unreachable = {"b"}
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(assign, 1)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert assign(0).mesh == "a1"  # the failure of generator 0 concerns only its own host
        pool.unreachable = set()
        assert waiting.result(30).mesh == "b2"
    assert assign(3).mesh == "b2"  # not lost a second time
    assert statuses == ["lost", "lost", "reconnected", "reconnected"]
    assign.stop()
    pool.unreachable = {"a"}
    with pytest.raises(RuntimeError, match="the run ended"):
        assign(0)


def test_a_run_that_lost_all_hosts_ends_after_the_reconnect_timeout() -> None:
    from glasshouse.distributed.hosts.multi_host import HostAssignment

    pool = FakePool()
    assign = HostAssignment(pool, 0, lambda kind, **details: None)
    assign(0)
    assign.hosts.drop("b")
    pool.unreachable = {"a", "b"}
    with pytest.raises(RunError, match=r"hosts\.reconnect_timeout"):
        assign(0)
