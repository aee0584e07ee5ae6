"""Functions that `hosts_cluster` runs on a machine: a controller that loses a host, and an intruder.

    python -m proofs.hosts_machine FUNCTION '{"argument": …}'

They exchange lines of JSON with their caller over stdin and stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint


class WorkActor(Actor):
    """Works for a given time, or writes a file."""

    @endpoint
    def work(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    @endpoint
    def write(self, marker: str) -> None:
        Path(marker).write_text("code was run on this machine")


def receive() -> Any:
    return json.loads(sys.stdin.readline())


def send(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def lose_host(overrides: list[str], lost: str) -> None:
    """Work on every host until one is lost, report it, continue with the others, then reconnect."""
    import monarch.actor

    from glasshouse.config.loading import load_config
    from glasshouse.distributed.hosts.host_pool import HostPool
    from glasshouse.errors import HostError

    monarch.actor.unhandled_fault_hook = lambda failure: None

    def spawn(mesh: Any) -> Any:
        actor = mesh.spawn_procs(per_host={"procs": 1}).spawn("work", WorkActor)
        actor.work.call_one(0.0).get(60)
        return actor

    with contextlib.closing(HostPool(load_config([], overrides).hosts)) as hosts:
        actors = {host: spawn(mesh) for host, mesh in hosts.meshes.items()}
        pending = actors[lost].work.call_one(600.0)
        time.sleep(1.0)
        send(ready=True)
        receive()
        completed, others = 0, [a for host, a in actors.items() if host != lost]
        while True:
            for other in others:
                other.work.call_one(0.0).get(30)
            completed += 1
            try:
                pending.get(0.05)
            except TimeoutError:
                continue
            except Exception as error:
                send(time=time.time(), error=type(error).__name__, completed=completed)
                break
        del hosts.meshes[lost]
        while receive()["reconnect"]:
            started = time.perf_counter()
            try:
                mesh = hosts.meshes[lost] = hosts.attach(lost)
            except HostError:
                send(reconnected=False)
                continue
            spawn(mesh)
            ports = hosts.used_ports[lost][-2:]
            send(reconnected=True, seconds=time.perf_counter() - started, ports=ports)
        for other in others:
            other.work.call_one(0.0).get(30)
        started = time.perf_counter()
    send(closed=time.perf_counter() - started)


def intrude(address: str, own_address: str, marker: str, timeout: float) -> None:
    """Do what Monarch's own client does to run code on the worker's machine: write a file there."""
    from monarch.actor import attach_to_workers, enable_transport

    from glasshouse.distributed.hosts.discovery import Address

    enable_transport(own_address)
    scheme, host, port = re.split("://|:", address)
    worker = Address(host, int(port), int(port)).for_monarch().replace("tls://", f"{scheme}://")
    mesh = attach_to_workers(ca="trust_all_connections", workers=[worker], name="intruder")
    try:
        actor = mesh.spawn_procs(per_host={"procs": 1}).spawn("writer", WorkActor)
        actor.write.call_one(marker).get(timeout)
        send(ran=True)
    except BaseException as error:
        send(ran=False, error=type(error).__name__)
    os._exit(0)  # Monarch would wait for the connection


FUNCTIONS: dict[str, Callable[..., None]] = {
    "lose_host": lose_host, "intrude": intrude,
}  # fmt: skip


def main() -> None:
    FUNCTIONS[sys.argv[1]](**json.loads(sys.argv[2]))


if __name__ == "__main__":
    # under its real name, so that the workers can import the pickled WorkActor
    from proofs import hosts_machine

    hosts_machine.main()
