"""A learner that is divided among two hosts (`hosts.learners`): equal to one host; lost hosts and ranks; bad input."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from glasshouse.store import checkpoints
from glasshouse.store.tensor_shards import read_shards
from proofs.hosts_cluster import CONTROLLER, PORTS, Cluster
from proofs.hosts_training import Measurements
from proofs.monarch_runs import MODEL
from proofs.network import NamespaceNetwork
from proofs.processes import stop_process, wait_until

NamespaceCluster = Cluster[NamespaceNetwork]
HOST = 2
"""The machine that has a rank, beside the controller's."""
END_LIMIT = 30.0
"""Seconds within which a run must end after it lost a rank: 4 s until Monarch reports it, then the ends of all
processes, of which a lost host is waited for."""
SMALL = [
    MODEL, "data.groups_per_step=4", "generate.group_size=4", "generate.max_tokens=24", "generate.chunk_size=2",
    "reward.terms={closeness: 1}", "learn.microbatch_tokens=64", "evaluate.problems=0", "checkpoints.every=1",
    "learn.sharding=fsdp", "backend=monarch", "monarch.generators=1", "monarch.verify_every=1",
]  # fmt: skip


def sharding(cluster: NamespaceCluster) -> Measurements:
    """Two ranks on two hosts have the bits of two ranks on one host, also after a rank, a link and a host were lost."""
    alone, divided, network = (
        cluster.folder / "one-host",
        cluster.folder / "two-hosts",
        cluster.network,
    )
    faults: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "killed rank": (lambda: kill_rank(cluster), lambda: None),
        "cut link": (lambda: network.cut_link(HOST), lambda: network.restore_link(HOST)),
        "killed host": (lambda: cluster.kill_worker(HOST), lambda: cluster.start_worker(HOST)),
    }
    seconds = {name: lose_rank(cluster, divided, *fault) for name, fault in faults.items()}
    steps = newest_step(divided) + 2
    run = start(cluster, divided, f"steps={steps}")
    _, errors = run.communicate(timeout=600)
    assert run.returncode == 0, errors
    cluster.glasshouse(
        "train", "--quiet", *SMALL, f"steps={steps}", "monarch.learners=2", f"out={alone}"
    )
    compare(alone / f"checkpoints/step-{steps:06d}", divided / f"checkpoints/step-{steps:06d}")
    refuse_separate_folder(cluster)
    return {"steps": steps, "seconds until the run has ended": seconds}


def compare(one: Path, other: Path) -> None:
    """The weights and the optimizer state of two checkpoints have the same bits."""
    weights = [(path / "model.safetensors").read_bytes() for path in (one, other)]
    assert weights[0] == weights[1], "the weights differ"
    first, second = read_shards(one), read_shards(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first), "the states differ"


def newest_step(out: Path) -> int:
    found, _ = checkpoints.newest_checkpoint(out / "checkpoints")
    return found.step if found else 0


def start(
    cluster: NamespaceCluster, out: Path, *overrides: str, prefix: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """Start a run with a rank on the controller's machine and one on another."""
    kind, _, certificates = cluster.overrides
    hosts = [kind, f"hosts.addresses=[{cluster.address(HOST)}]", certificates]
    return cluster.network.start(
        CONTROLLER,
        [*prefix, sys.executable, "-m", "glasshouse", "train", "--quiet", *SMALL, *hosts,
         "monarch.learners=1", "hosts.learners=1", f"out={out}", *overrides],
        env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def lose_rank(
    cluster: NamespaceCluster, out: Path, lose: Callable[[], object], restore: Callable[[], object]
) -> float:
    """Lose the other rank after two steps; return the seconds until the run has ended. It must say what to do, and
    leave no process on the other host."""
    wanted = newest_step(out) + 2
    run = start(cluster, out, "steps=1000")
    try:
        wait_until(
            lambda: (out / f"checkpoints/step-{wanted:06d}").exists() or run.poll() is not None, 600
        )
        assert run.poll() is None, run.communicate()
        started = time.monotonic()
        lose()
        try:
            _, errors = run.communicate(timeout=300)
            seconds = round(time.monotonic() - started, 1)
        finally:
            restore()
    finally:
        stop_process(run)
    assert run.returncode == 2, (run.returncode, errors)
    assert "to resume from the last checkpoint" in errors, errors
    assert "Traceback" not in errors, errors
    assert seconds < END_LIMIT, f"the run ended after {seconds} s"
    wait_until(lambda: len(cluster.network.pids(HOST)) <= 2, 120, poll=0.5)  # the worker's two
    return seconds


def kill_rank(cluster: NamespaceCluster) -> None:
    """Kill the rank on the other host: the process that listens at another port than the worker."""
    first, last = map(int, PORTS.split("-"))
    output = subprocess.run(
        ["ip", "netns", "exec", cluster.network.namespace(HOST), "ss", "-Hltnp"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    listeners = re.findall(r":(\d+) .*pid=(\d+)", output)
    (rank,) = {int(pid) for port, pid in listeners if not first <= int(port) <= last}
    os.kill(rank, signal.SIGKILL)


def refuse_separate_folder(cluster: NamespaceCluster) -> None:
    """A run directory that only the controller sees: exit code 2 and a sentence, before the first step."""
    folder = cluster.folder / "separate"
    folder.mkdir()
    mount = f'mount -t tmpfs none {folder} && exec "$@"'
    run = start(
        cluster, folder / "run", "steps=1", prefix=("unshare", "-m", "sh", "-c", mount, "sh")
    )
    _, errors = run.communicate(timeout=600)
    assert run.returncode == 2, (run.returncode, errors)
    assert "a directory that all hosts share" in errors, errors
    assert "Traceback" not in errors, errors
    wait_until(lambda: len(cluster.network.pids(HOST)) <= 2, 120, poll=0.5)
