"""Hosts without workers: addresses, certificates, refused configs, host assignment."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import ssl
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509 import verification
from proofs.discovery_load import Supervisor, measure, slow_clients
from proofs.processes import wait_until

from glasshouse.cli.app import main
from glasshouse.config.schema import HostsConfig
from glasshouse.distributed.hosts import discovery
from glasshouse.distributed.hosts.certificates import create_certificates, tls_environment
from glasshouse.distributed.hosts.discovery import Address, request_worker_port
from glasshouse.distributed.hosts.host_pool import HostPool
from glasshouse.distributed.hosts.worker import validate_listen_address
from glasshouse.errors import ConfigError, HostError, RunError

pytest.importorskip("monarch")


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


def test_addresses_are_parsed_and_every_port_has_another_identity() -> None:
    address = Address.parse("tls://10.0.0.2:26600-26609")
    assert (address.ip, address.worker_ports) == ("10.0.0.2", range(26601, 26610))
    assert str(address) == "tls://10.0.0.2:26600-26609"
    assert str(address.with_port(26603)) == "tls://10.0.0.2:26603"
    assert Address.parse("tls://[fe80::1]:26600-26601").ip == "fe80::1"
    assert len({address.with_port(port).identity() for port in address.worker_ports}) == 9


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.2",
        "tls://:1-2",
        "tls://a:0-1",
        "tls://a:2-1",
        "tls://a:2",
        "tls://a:1-70000",
        "http://a:1-2",
    ],
)
def test_an_invalid_address_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"address|ports"):
        Address.parse(text)


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
    ("arguments", "message"),
    [
        (["check"], "hosts.addresses is empty"),
        (["check", "hosts.addresses=[tcp://10.0.0.2:1]"], "not an address"),
        (["check", "hosts.addresses=[tls://10.0.0.2:1-2]"], "hosts.certificates is empty"),
        (["check", "hosts.addresses=[tls://a:1-2,tls://a:3-4]"], "more than once"),
        (["worker", "--address", "tcp://10.0.0.2:1-2", "--certificates", "x"], "not an address"),
        (["worker", "--address", "tls://10.0.0.2:1-2", "--certificates", "x"], "no ca.pem"),
    ],
)
def test_an_unprotected_or_impossible_run_or_worker_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hosts", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_worker_listens_only_on_the_address_of_its_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, named = create_certificates(tmp_path, ["127.0.0.1", "Node7.example.org"])
    validate_listen_address(Address.parse("tls://127.0.0.1:26600-26609"), folder)
    validate_listen_address(Address.parse("tls://node7.example.org.:26600-26609"), named)
    for host in ("127.0.0.2", "0.0.0.0", "[::]", "0", "localhost"):
        options = ["--address", f"tls://{host}:26600-26609", "--certificates", str(folder)]
        assert main(["hosts", "worker", *options]) == 2
        assert "not the address of the certificate" in capsys.readouterr().err


# --- host assignment ---------------------------------------------------------------------------


def make_pool(monkeypatch: pytest.MonkeyPatch, reconnect_timeout: float) -> tuple[Any, set[str]]:
    """Hosts "a" and "b", and a set of hosts that cannot be attached. A mesh is a text."""
    pool, unreachable, attached = HostPool.__new__(HostPool), set[str](), itertools.count(1)

    def attach(name: str) -> str:
        if name in unreachable:
            raise HostError("no answer")
        return f"{name}{next(attached)}"

    monkeypatch.setattr(pool, "attach", attach, raising=False)
    pool.names, pool.meshes, pool.assigned = ("a", "b"), {"a": "a0", "b": "b0"}, {}  # type: ignore[dict-item]
    pool.config = HostsConfig(reconnect_timeout=reconnect_timeout)
    pool.lock, pool.stopping, pool.all_lost_since = threading.Lock(), threading.Event(), None
    return pool, unreachable


def test_generators_wait_for_their_lost_host_and_follow_it_when_it_reconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (pool, unreachable), statuses = make_pool(monkeypatch, 60), list[str]()

    def assign(number: int) -> Any:
        return pool.assign(number, lambda kind, **details: statuses.append(details["status"]))[0]

    assert [assign(n) for n in range(4)] == ["a0", "b0", "a0", "b0"]
    unreachable.add("b")
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(assign, 1)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        assert assign(0) == "a1"  # the failure of generator 0 concerns only its own host
        unreachable.clear()
        assert waiting.result(30) == "b2"
    assert assign(3) == "b2"  # not lost a second time
    assert statuses == ["lost", "lost", "reconnected", "reconnected"]
    pool.stopping.set()
    unreachable.add("a")
    with pytest.raises(HostError, match="The run ended"):
        assign(0)


def test_a_run_that_lost_all_hosts_ends_after_the_reconnect_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, unreachable = make_pool(monkeypatch, 0)
    pool.assign(0, lambda kind, **details: None)
    del pool.meshes["b"]
    unreachable |= {"a", "b"}
    with pytest.raises(RunError, match=r"hosts\.reconnect_timeout"):
        pool.assign(0, lambda kind, **details: None)


# --- discovery ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path_factory.mktemp("supervisor"))
    yield supervisor
    supervisor.close()


def send(supervisor: Supervisor, data: bytes) -> bytes:
    """Send bytes over TLS with a valid certificate and return the answer."""
    folder, address = supervisor.certificates, supervisor.address
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "host.pem", folder / "host.key")
    with (
        socket.create_connection((address.ip, address.first), 30) as plain,
        context.wrap_socket(plain, server_hostname=address.ip) as client,
    ):
        client.sendall(data)
        try:
            return client.recv(100)
        except ConnectionError:
            return b""


def is_cut(client: socket.socket) -> bool:
    """Send a byte; return whether the server has ended the connection."""
    try:
        client.sendall(b" ")
    except ConnectionError:
        return True
    return False


def test_only_clients_of_the_same_ca_are_answered(supervisor: Supervisor, tmp_path: Path) -> None:
    """The request of any other client is not even read."""
    own, address = supervisor.certificates, supervisor.address
    (other,) = create_certificates(tmp_path / "other", ["127.0.0.1"])
    untrusting = shutil.copytree(other, tmp_path / "untrusting")
    shutil.copyfile(own / "ca.pem", other / "ca.pem")  # it trusts the server: the server refuses
    assert supervisor.request([address.first + 5]) == address.first + 1
    count = len(supervisor.requests)
    assert supervisor.requests[-1] == [address.first + 5]
    with pytest.raises(HostError, match="refused this host's certificate"):
        request_worker_port(address, other)
    with pytest.raises(HostError, match="is not trusted"):
        request_worker_port(address, untrusting)
    assert len(supervisor.requests) == count


def test_slow_clients_delay_neither_rightful_ones_nor_the_supervisor(
    supervisor: Supervisor,
) -> None:
    with slow_clients(supervisor, half_open=40, trickling=5):
        measure(supervisor, 5)
        supervisor.child.kill()
        wait_until(lambda: supervisor.detected is not None, timeout=60)
        measure(supervisor, 5)


def test_malformed_requests_of_a_certificate_holder_end_only_their_connection(
    supervisor: Supervisor,
) -> None:
    count = len(supervisor.requests)
    for line in (b"1e400", b"[26601]", b"\xff\xfe", b"26601, 26602", b"1" * 4200, b" " * 5000):
        assert send(supervisor, line + b"\n") == b""
    assert len(supervisor.requests) == count
    assert supervisor.thread.is_alive()
    assert supervisor.request() == supervisor.address.first + 1


def test_a_client_has_a_deadline_that_single_bytes_do_not_extend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "CLIENT_TIMEOUT", 0.5)
    supervisor = Supervisor(tmp_path)
    with (
        contextlib.closing(supervisor),
        socket.create_connection((supervisor.address.ip, supervisor.address.first), 30) as client,
    ):
        client.sendall(b"\x16\x03\x01\x20\x00\x01\x00\x1f\xfc\x03\x03")  # a long client hello
        wait_until(lambda: is_cut(client), timeout=60, poll=0.05)
