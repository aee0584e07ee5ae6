"""A worker's discovery port: who is answered, and what slow or malformed clients cannot do.

proofs/discovery_load.py has the longer version, with a limit on the time.
"""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("monarch")

from proofs.discovery_load import Supervisor, measure, slow_clients
from proofs.processes import wait_until

from glasshouse.distributed.hosts import discovery
from glasshouse.distributed.hosts.certificates import create_certificates
from glasshouse.distributed.hosts.discovery import request_worker_port
from glasshouse.errors import HostError


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


def test_a_client_has_one_deadline_for_handshake_and_request(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that arrive one by one do not extend it."""
    monkeypatch.setattr(discovery, "CLIENT_TIMEOUT", 0.5)
    with socket.create_connection((supervisor.address.ip, supervisor.address.first), 30) as client:
        client.sendall(b"\x16\x03\x01\x20\x00\x01\x00\x1f\xfc\x03\x03")  # a long client hello
        wait_until(lambda: is_cut(client), timeout=60, poll=0.05)


def test_the_number_of_connections_is_bounded(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest one that has sent no request makes room for a new one."""
    wait_until(lambda: not supervisor.server.connections)
    monkeypatch.setattr(discovery, "CLIENT_TIMEOUT", 60.0)
    monkeypatch.setattr(discovery, "MAX_CONNECTIONS", 4)
    target = (supervisor.address.ip, supervisor.address.first)
    clients = [socket.create_connection(target, 30) for _ in range(10)]
    try:
        assert clients[0].recv(1) == b""  # closed by the server, long before its deadline
        assert supervisor.request() == supervisor.address.first + 1
        assert len(supervisor.server.connections) <= 4
    finally:
        for client in clients:
            client.close()
