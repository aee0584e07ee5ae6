"""What runs on a machine of `hosts_scene`: a controller that loses a host, an intruder, their actor.

Each function says and hears lines of JSON. It is run under this module's own name
(`hosts_machine.main()`), so that the workers can import its actors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint


class Steady(Actor):
    """Works for as long as it is asked to."""

    @endpoint
    def work(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    @endpoint
    def write(self, marker: str) -> None:
        Path(marker).write_text("code of ours ran here")


def told() -> Any:
    return json.loads(sys.stdin.readline())


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def noticed(overrides: list[str], lost: str, actor: str = "hosts_machine:Steady") -> None:
    """Work on every host until one is lost, say when that was noticed, go on with the others, and
    take it back when told to."""
    from importlib import import_module

    import monarch.actor

    from glasshouse import config
    from glasshouse.backends.hosts import open_hosts

    monarch.actor.unhandled_fault_hook = lambda failure: None
    module, _, name = actor.partition(":")
    cls = getattr(import_module(module), name)

    def spawn(mesh: Any) -> Any:
        made = mesh.spawn_procs(per_host={"procs": 1}).spawn("steady", cls)
        made.work.call_one(0.0).get(60)
        return made

    with open_hosts(config.load([], overrides).hosts) as hosts:
        actors = {host: spawn(mesh) for host, mesh in hosts.meshes.items()}
        pending = actors[lost].work.call_one(600.0)
        time.sleep(1.0)
        tell(ready=True)
        told()
        done, others = 0, [a for host, a in actors.items() if host != lost]
        while True:
            for other in others:
                other.work.call_one(0.0).get(30)
            done += 1
            try:
                pending.get(0.05)
            except TimeoutError:
                continue
            except Exception as error:
                tell(at=time.time(), error=type(error).__name__, meanwhile=done)
                break
        hosts.lose(lost)
        while told()["again"]:
            begun = time.perf_counter()
            mesh = hosts.rejoin(lost)
            if mesh is None:
                tell(back=False)
                continue
            spawn(mesh)
            tell(back=True, seconds=time.perf_counter() - begun, ports=hosts.source.used[lost][-2:])
        for other in others:
            other.work.call_one(0.0).get(30)
        begun = time.perf_counter()
    tell(closed=time.perf_counter() - begun)


def intrude(address: str, own: str, marker: str, patience: float) -> None:
    """Do all that Monarch's own client would do to have a file written on the worker's machine."""
    from monarch.actor import attach_to_workers, enable_transport

    from glasshouse.backends.hosts.address import Address
    from glasshouse.backends.hosts.attached import with_identity

    enable_transport(own)
    mesh = attach_to_workers(
        ca="trust_all_connections", workers=[with_identity(Address.parse(address))], name="intruder"
    )
    try:
        made = mesh.spawn_procs(per_host={"procs": 1}).spawn("writer", Steady)
        made.write.call_one(marker).get(patience)
        tell(ran=True)
    except BaseException as error:
        tell(ran=False, error=type(error).__name__)
    os._exit(0)  # what it waits for on its way out does not matter


INSIDE: dict[str, Callable[..., None]] = {"noticed": noticed, "intrude": intrude}


def main() -> None:
    INSIDE[sys.argv[1]](**json.loads(sys.argv[2]))
