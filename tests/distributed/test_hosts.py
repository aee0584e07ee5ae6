"""Hosts without workers: addresses, certificates, discovery, refused configs, host assignment."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("monarch")

from cryptography import x509
from cryptography.x509 import verification

from glasshouse.cli.app import main
from glasshouse.distributed.hosts.address import Address, listening_ports
from glasshouse.distributed.hosts.certificates import create_certificates
from glasshouse.distributed.hosts.host_pool import HostPool
from glasshouse.distributed.hosts.security import tls_environment
from glasshouse.distributed.hosts.worker import StopRequested, _stop_signals
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
    assert (address.ip, len(address.ports)) == ("10.0.0.2", 10)
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


@given(first=st.integers(1, 60000), count=st.integers(1, 9), offset=st.integers(0, 12))
def test_ports_after_yields_every_port_once_and_the_given_one_last(
    first: int, count: int, offset: int
) -> None:
    address = Address("h", first, first + count - 1)
    ports = list(address.ports_after(first + offset))
    assert sorted(ports) == list(address.ports)
    if first + offset in address.ports:
        assert ports[-1] == first + offset


def test_every_port_has_a_different_identity() -> None:
    address = Address.parse("tls://10.0.0.2:26600-26699")
    assert len({address.with_port(port).identity() for port in address.ports}) == 100
    assert address.with_port(26600).identity() == Address.parse("tls://10.0.0.2:26600").identity()


def test_listening_ports_are_found_among_closed_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_ports("127.0.0.1", range(port - 3, port + 1)) >= {port}
    assert port not in listening_ports("127.0.0.1", [port])
    assert listening_ports("no-such-host.invalid", [1]) == set()


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
    assert (two / "name").read_text() == "node7.example.org\n"
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


@pytest.mark.parametrize("host", ["../escape", "a/b", "", "-x", "a..b", "x,DNS:y"])
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
        (["kind=addresses"], "hosts.addresses is empty"),
        (["kind=addresses", "addresses=[tcp://10.0.0.2:1]"], "not an address"),
        (["kind=addresses", "addresses=[tls://10.0.0.2:1]"], "hosts.certificates is empty"),
        (["kind=addresses", "addresses=[tls://a:1,tls://a:2]"], "more than once"),
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_stops_at_the_first_signal_and_ignores_the_next_during_cleanup(
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    with _stop_signals():
        with pytest.raises(StopRequested):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) == before


# --- host assignment ---------------------------------------------------------------------------


class FakeProvider:
    """Hosts "a" and "b"; those in `unreachable` cannot be attached. A mesh is a text."""

    names: tuple[str, ...] = ("a", "b")

    def __init__(self) -> None:
        self.unreachable: set[str] = set()
        self.attached = 0

    def attach(self, name: str) -> Any:
        if name in self.unreachable:
            raise HostError("unreachable")
        self.attached += 1
        return f"{name}{self.attached}"

    def release(self, name: str, mesh: Any) -> None: ...

    def forget(self, name: str) -> None: ...

    def close(self) -> None: ...


def test_generators_wait_for_their_lost_host_and_follow_it_when_it_reconnects() -> None:
    from glasshouse.distributed.hosts.multi_host import HostAssignment

    provider, statuses = FakeProvider(), list[str]()
    assign = HostAssignment(
        HostPool(provider), 60, lambda kind, **details: statuses.append(details["status"])
    )
    assert [assign(n).mesh for n in range(4)] == ["a1", "b2", "a1", "b2"]
    provider.unreachable = {"b"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(assign, 1)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert assign(0).mesh == "a3"  # the failure of generator 0 concerns only its own host
        provider.unreachable = set()
        assert waiting.result(30).mesh == "b4"
    assert assign(3).mesh == "b4"  # not lost a second time
    assert statuses == ["lost", "lost", "reconnected", "reconnected"]
    assign.stop()
    provider.unreachable = {"a"}
    with pytest.raises(RuntimeError, match="the run ended"):
        assign(0)


def test_a_run_that_lost_all_hosts_ends_after_the_reconnect_timeout() -> None:
    from glasshouse.distributed.hosts.multi_host import HostAssignment

    provider = FakeProvider()
    assign = HostAssignment(HostPool(provider), 0, lambda kind, **details: None)
    assign(0)
    assign.hosts.mark_lost("b")
    provider.unreachable = {"a", "b"}
    with pytest.raises(RunError, match=r"hosts\.reconnect_timeout"):
        assign(0)
