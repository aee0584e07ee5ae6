"""Real workers at loopback addresses: TLS, a killed host, and what a stopped worker leaves.

proofs/hosts.py has the longer versions, on machines in network namespaces: code execution attempts
with Monarch's own client, cut links, orphans, and the limits on the time until a loss is detected.
"""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("monarch")

from proofs.hosts import lose_and_reconnect
from proofs.hosts_cluster import CONTROLLER, OUTSIDER, WORKERS, Cluster
from proofs.network import LoopbackNetwork
from proofs.processes import wait_until

from glasshouse.distributed.hosts.discovery import Address, request_worker_port
from glasshouse.distributed.hosts.worker import session_processes

pytestmark = pytest.mark.xdist_group("host workers")  # the tests share two workers, in this order

LoopbackCluster = Cluster[LoopbackNetwork]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    """Two running workers."""
    cluster = Cluster(LoopbackNetwork(4), tmp_path_factory.mktemp("cluster"))
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(cluster.start_worker, WORKERS))
        yield cluster
    finally:
        cluster.close()


def is_refused(ip: str, port: int, ca: Path, certificate: Path | None, timeout: float) -> bool:
    """Whether a server ends a TLS connection instead of waiting for a message."""
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate / "host.pem", certificate / "host.key")
    try:
        with (
            socket.create_connection((ip, port), 30) as plain,
            context.wrap_socket(plain, server_hostname=ip) as secured,
        ):
            secured.settimeout(timeout)
            return secured.recv(1) == b""
    except TimeoutError:
        return False
    except (ssl.SSLError, ConnectionError):
        return True


def test_a_worker_accepts_only_certificates_of_its_own_ca(cluster: LoopbackCluster) -> None:
    """At its discovery port and at the port where code is run."""
    ip, ca = cluster.network.ip(2), cluster.folder / "own" / "ca.pem"
    own, other = cluster.certificates(CONTROLLER), cluster.certificates(OUTSIDER)
    address = Address.parse(cluster.address(2))
    worker_port = request_worker_port(address, own)
    assert worker_port in address.worker_ports
    for port in (address.first, worker_port):
        assert not is_refused(ip, port, ca, own, timeout=1)
        assert is_refused(ip, port, ca, other, timeout=60)
        assert is_refused(ip, port, ca, None, timeout=60)
    with socket.create_connection((ip, worker_port), 30) as plain:
        plain.settimeout(60)
        plain.sendall(b"no TLS\n" * 100)
        try:
            answer = plain.recv(100)
        except ConnectionError:
            answer = b""
    assert not answer or answer[0] == 21  # 21: a TLS alert


def test_a_killed_host_is_detected_and_reconnects_at_another_port(cluster: LoopbackCluster) -> None:
    """The other host continues meanwhile."""
    lose_and_reconnect(cluster, cluster.kill_worker, cluster.start_worker, detection_limit=120)


def test_a_stopped_or_killed_worker_leaves_no_process(cluster: LoopbackCluster) -> None:
    """The last test of this file: it ends the workers."""
    for machine, number, code in ((2, signal.SIGTERM, 0), (3, signal.SIGKILL, -9)):
        leader, worker = cluster.session_leader(machine), cluster.workers.pop(machine)
        worker.send_signal(number)
        assert worker.wait(60) == code
        wait_until(lambda leader=leader: not session_processes(leader))
