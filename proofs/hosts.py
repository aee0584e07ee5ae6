"""Several hosts: machines in network namespaces, with workers and mutual TLS.

    python -m proofs.hosts [connect security cut kill orphans signals train sharding]      (`make proofs ONLY=hosts`)

Each proof is a function that takes a `Cluster` and returns its measurements; it raises if its claim
does not hold. Needs root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from proofs.hosts_cluster import CONTROLLER, OUTSIDER, WORKERS, Cluster, RemoteCall
from proofs.hosts_training import DETECTION_LIMIT, Measurements, train
from proofs.network import NamespaceNetwork
from proofs.processes import wait_until

NamespaceCluster = Cluster[NamespaceNetwork]


def connect(cluster: NamespaceCluster) -> Measurements:
    """`hosts check` reaches both hosts; each listens at its two TLS ports only."""
    check = cluster.network.start(
        CONTROLLER, [sys.executable, "-m", "glasshouse", "hosts", "check", *cluster.overrides],
        env=cluster.environment, stdout=subprocess.PIPE,
    )  # fmt: skip
    output, _ = check.communicate(timeout=120)
    assert check.returncode == 0, output
    assert all(cluster.network.ip(m) in output for m in WORKERS), output
    print(output)
    listening = [cluster.network.listeners(m) for m in WORKERS]
    assert all(len(ports) == 2 for ports in listening), listening  # discovery and the worker
    return {"listening": listening}


def security(cluster: NamespaceCluster, timeout: float = 8.0) -> Measurements:
    """A worker runs code for clients with a certificate of its CA, and for no other client.

    `hosts check` from the outsider fails within 10 s with an error instead of a time-out.
    """
    worker, own, other = (
        cluster.network.ip(2),
        cluster.folder / "own",
        cluster.certificates(OUTSIDER),
    )
    both = cluster.folder / "both.pem"  # the outsider trusts both CAs: only the worker refuses
    both.write_text((own / "ca.pem").read_text() + (other / "ca.pem").read_text())
    empty = cluster.folder / "empty.pem"
    empty.write_text("")
    port = max(int(address.rpartition(":")[2]) for address in cluster.network.listeners(2))
    mine = cluster.certificates(CONTROLLER)
    attempts: dict[str, tuple[str, int, dict[str, Path]]] = {
        "own": (
            "tls",
            CONTROLLER,
            {"ca": own / "ca.pem", "cert": mine / "host.pem", "key": mine / "host.key"},
        ),
        "other_ca": (
            "tls",
            OUTSIDER,
            {"ca": both, "cert": other / "host.pem", "key": other / "host.key"},
        ),
        "no_certificate": ("tls", OUTSIDER, {"ca": both, "cert": empty, "key": other / "host.key"}),
        "plain": ("tcp", OUTSIDER, {}),
    }

    def run_code(name: str) -> bool:
        scheme, machine, files = attempts[name]
        marker = cluster.folder / f"marker-{name}"
        own_port = 27000 + list(attempts).index(name)
        with cluster.call(
            "intrude", machine, {f"HYPERACTOR_TLS_{k.upper()}": str(v) for k, v in files.items()},
            address=f"{scheme}://{worker}:{port}",
            own_address=f"{scheme}://{cluster.network.ip(machine)}:{own_port}",
            marker=str(marker), timeout=timeout if machine == OUTSIDER else 60.0,
        ) as intruder:  # fmt: skip
            try:
                intruder.process.wait(timeout + 60)
            except subprocess.TimeoutExpired:
                intruder.process.kill()
        return marker.exists()

    with ThreadPoolExecutor(len(attempts)) as pool:
        ran = dict(zip(attempts, pool.map(run_code, attempts), strict=True))
    assert ran.pop("own"), "the attempt fails even with the right certificate: it shows nothing"
    assert not any(ran.values()), f"code was run: {ran}"
    return {"code_run_by": ran, "refused_after": _refused_check(cluster)}


def _refused_check(cluster: NamespaceCluster) -> float:
    started = time.monotonic()
    check = cluster.network.start(
        OUTSIDER,
        [sys.executable, "-m", "glasshouse", "hosts", "check", cluster.overrides[0],
         f"hosts.certificates={cluster.certificates(OUTSIDER)}"],
        env=cluster.environment, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, errors = check.communicate(timeout=20)
    seconds = time.monotonic() - started
    assert check.returncode == 2, errors
    assert "is not trusted" in errors, errors
    assert seconds < 10, f"refused only after {seconds:.1f} s"
    return round(seconds, 1)


def cut(cluster: NamespaceCluster) -> Measurements:
    """A cut link is detected in time; the other host continues; the host reconnects afterwards."""
    return lose_and_reconnect(cluster, cluster.network.cut_link, cluster.network.restore_link)


def kill(cluster: NamespaceCluster) -> Measurements:
    """A killed host is detected in time; the other host continues; restarted, it reconnects."""
    return lose_and_reconnect(cluster, cluster.kill_worker, cluster.start_worker)


def lose_and_reconnect(
    cluster: Cluster[Any],
    lose: Callable[[int], object],
    restore: Callable[[int], object],
    detection_limit: float = DETECTION_LIMIT,
) -> Measurements:
    """Lose machine 3 while it works and restore it; it must return at another port."""
    with cluster.call("lose_host", overrides=cluster.overrides, lost=cluster.network.ip(3)) as run:
        run.receive()
        run.send(go=True)
        started = time.time()
        lose(3)
        try:
            report = run.receive()
            seconds = report["time"] - started
            assert seconds < detection_limit, f"detected after {seconds:.1f} s"
            assert report["completed"] > 1, "the other host did not continue"
            run.send(reconnect=True)
            assert run.receive() == {"reconnected": False}
        finally:
            restore(3)
        reconnected = _wait_for_reconnect(run)
        run.send(reconnect=False)
        closed = round(run.receive()["closed"], 2)
    return {
        "detected": round(seconds, 2), "error": report["error"], "completed": report["completed"],
        "reconnect": reconnected, "closed": closed,
    }  # fmt: skip


def _wait_for_reconnect(run: RemoteCall, timeout: float = 60) -> Measurements:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        run.send(reconnect=True)
        report = run.receive()
        if report["reconnected"]:
            before, after = report["ports"]
            assert before != after, "it returned at the port at which it was lost"
            return {"seconds": round(report["seconds"], 2), "ports": report["ports"]}
        time.sleep(0.5)
    raise AssertionError(f"it did not reconnect within {timeout:g} s")


def orphans(cluster: NamespaceCluster, timeout: float = 60) -> Measurements:
    """A run that is killed leaves no process on the workers' machines."""
    network = cluster.network
    before = len(network.pids(2))
    with cluster.call("lose_host", overrides=cluster.overrides, lost=network.ip(3)) as run:
        run.receive()
        assert len(network.pids(2)) > before, "no process was started: it would show nothing"
        for pid in network.pids(CONTROLLER):
            os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    wait_until(lambda: len(network.pids(2)) <= before, timeout, poll=0.5)
    return {"gone": round(time.monotonic() - started, 1)}


def signals(cluster: NamespaceCluster) -> Measurements:
    """A worker that gets SIGTERM, SIGINT or SIGKILL ends within 5 s with everything it started."""
    from glasshouse.distributed.hosts.worker import session_processes

    seconds = {}
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)):
        leader, worker = cluster.session_leader(3), cluster.workers.pop(3)
        started = time.monotonic()
        worker.send_signal(number)
        assert worker.wait(15) == code, f"{number.name}: {worker.returncode}"
        wait_until(lambda leader=leader: not session_processes(leader), 5)
        seconds[number.name] = round(time.monotonic() - started, 2)
        cluster.start_worker(3)
    return seconds


PROOFS: dict[str, Callable[[NamespaceCluster], Measurements]] = {
    "connect": connect,
    "security": security,
    "cut": cut,
    "kill": kill,
    "orphans": orphans,
    "signals": signals,
    "train": train,
}


def main(names: list[str]) -> int:
    reason = NamespaceNetwork.why_unavailable()
    if reason:
        print(f"skipped: {reason}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    with tempfile.TemporaryDirectory() as folder, NamespaceNetwork(4) as network:
        cluster = Cluster(network, Path(folder))
        try:
            for machine in WORKERS:
                print(f"worker {cluster.start_worker(machine)}")
            for name in names or list(PROOFS):
                started = time.monotonic()
                measurements = json.dumps(PROOFS[name](cluster))
                print(f"{name}: {measurements} in {time.monotonic() - started:.1f} s", flush=True)
        finally:
            cluster.close()
        remaining = [pid for m in range(1, network.count + 1) for pid in network.pids(m)]
        assert not remaining, f"processes remain: {remaining}"
        print("no process remains on any machine")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
