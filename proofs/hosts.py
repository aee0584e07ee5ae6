"""Several hosts, for real: machines in network namespaces, workers on them, mutual TLS between them.

    python -m proofs.hosts [reach security cut kill orphans train]      (`make hosts-proof`)

A proof is a function from a `Scene` (the network, its certificates, its workers) to what it measured;
it raises if its claim does not hold. What happens on the controller's machine is a function of
hosts_machine.py that is run there: `scene.inside("noticed", …)`. Any actor class can take the part of
its `Steady`.
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

from proofs.hosts_scene import CONTROLLER, STRANGER, WORKERS, Inside, Scene
from proofs.hosts_training import NOTICED_WITHIN, Measured, train
from proofs.network import Network


def reach(scene: Scene) -> Measured:
    """`hosts check` sees both hosts, and each listens at its one TLS port only."""
    shown = scene.network.start(
        CONTROLLER, [scene.python, "-m", "glasshouse", "hosts", "check", *scene.overrides],
        env=scene.environment, stdout=subprocess.PIPE,
    )  # fmt: skip
    out, _ = shown.communicate(timeout=120)
    assert shown.returncode == 0, out
    assert all(scene.network.ip(m) in out for m in WORKERS), out
    print(out)
    listening = [scene.network.listeners(m) for m in WORKERS]
    assert all(len(ports) == 2 for ports in listening), listening  # the door and the worker
    return {"listening": listening}


def security(scene: Scene, patience: float = 8.0) -> Measured:
    """Code runs on a worker for a certificate of its authority, and for nobody else."""
    ip, worker = scene.network.ip(STRANGER), scene.network.ip(2)
    own, other = scene.folder / "own", scene.folder / "other"
    both = scene.folder / "both.pem"  # the stranger trusts everybody: the refusal is the worker's
    both.write_text((own / "ca.pem").read_text() + (other / "ca.pem").read_text())
    (scene.folder / "empty.pem").write_text("")
    shown = other / ip

    port = max(int(at.rpartition(":")[2]) for at in scene.network.listeners(2))

    def attempt(name: str, scheme: str, machine: int, number: int, **tls: Path) -> bool:
        marker = scene.folder / f"marker-{name}"
        environment = {f"HYPERACTOR_TLS_{k.upper()}": str(v) for k, v in tls.items()}
        with scene.inside(
            "intrude", machine, environment, address=f"{scheme}://{worker}:{port}",
            patience=patience if machine == STRANGER else 60.0,
            own=f"{scheme}://{scene.network.ip(machine)}:{27000 + number}", marker=str(marker),
        ) as intruder:  # fmt: skip
            try:
                intruder.process.wait(patience + 60)
            except subprocess.TimeoutExpired:
                intruder.process.kill()
        return marker.exists()

    mine = scene.certificates(CONTROLLER)
    attempts: dict[str, tuple[Any, ...]] = {
        "own": ("tls", CONTROLLER, 0, own / "ca.pem", mine / "host.pem", mine / "host.key"),
        "other_authority": ("tls", STRANGER, 1, both, shown / "host.pem", shown / "host.key"),
        "no_certificate": (
            "tls",
            STRANGER,
            2,
            both,
            scene.folder / "empty.pem",
            shown / "host.key",
        ),
        "plain": ("tcp", STRANGER, 3),
    }

    def one(name: str) -> bool:
        scheme, machine, number, *files = attempts[name]
        return attempt(
            name, scheme, machine, number, **dict(zip(("ca", "cert", "key"), files, strict=False))
        )

    with ThreadPoolExecutor(len(attempts)) as pool:
        found = dict(zip(attempts, pool.map(one, attempts), strict=True))
    assert found.pop("own"), "the attempt itself does not work: it would prove nothing"
    assert not any(found.values()), f"code was run: {found}"
    return {"code_run_by": found}


def cut(scene: Scene) -> Measured:
    """A cut link is noticed in time; the other host works on; mended, the host joins again."""
    return _lost_and_found(scene, scene.network.cut, scene.network.mend)


def kill(scene: Scene) -> Measured:
    """A killed host is noticed in time; the other works on; restarted, it joins again."""
    return _lost_and_found(scene, scene.kill_worker, scene.start_worker)


def _lost_and_found(
    scene: Scene, lose: Callable[[int], object], find: Callable[[int], object]
) -> Measured:
    with scene.inside("noticed", overrides=scene.overrides, lost=scene.network.ip(3)) as run:
        run.hear()
        run.say(go=True)
        at = time.time()
        lose(3)
        try:
            found = _noticed_since(at, run.hear())
            run.say(again=True)
            assert run.hear() == {"back": False}
        finally:
            find(3)
        found["rejoin"] = _rejoined(run)
        run.say(again=False)
        found["closed"] = round(run.hear()["closed"], 2)
    return found


def orphans(scene: Scene, within: float = 60) -> Measured:
    """A run that is killed leaves nothing on the workers' machines."""

    def alive(machine: int) -> list[str]:
        listed = ["ip", "netns", "pids", scene.network.name(machine)]
        return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()

    before = len(alive(2))
    with scene.inside("noticed", overrides=scene.overrides, lost=scene.network.ip(3)) as run:
        run.hear()
        assert len(alive(2)) > before, "nothing was started: nothing would be proved"
        for process in alive(CONTROLLER):
            os.kill(int(process), signal.SIGKILL)
    begun = time.monotonic()
    while len(alive(2)) > before:
        assert time.monotonic() - begun < within, "orphans are left"
        time.sleep(0.5)
    return {"gone": round(time.monotonic() - begun, 1)}


def _noticed_since(at: float, heard: Any) -> Measured:
    seconds = heard["at"] - at
    assert seconds < NOTICED_WITHIN, f"noticed after {seconds:.1f} s"
    assert heard["meanwhile"] > 1, "the other host did not work on"
    return {"noticed": round(seconds, 2), "as": heard["error"], "meanwhile": heard["meanwhile"]}


def _rejoined(run: Inside, within: float = 30) -> Measured:
    until = time.monotonic() + within
    while time.monotonic() < until:
        run.say(again=True)
        heard = run.hear()
        if heard["back"]:
            before, after = heard["ports"]
            assert before != after, "it came back at the port at which it was lost"
            return {"seconds": round(heard["seconds"], 2), "ports": heard["ports"]}
        time.sleep(0.5)
    raise AssertionError("it did not join again")


PROOFS = {
    "reach": reach,
    "security": security,
    "cut": cut,
    "kill": kill,
    "orphans": orphans,
    "train": train,
}


def main(names: list[str]) -> int:
    why = Network.missing()
    if why:
        print(f"skipped: {why}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the network is taken down
    with tempfile.TemporaryDirectory() as folder, Network(4) as network:
        scene = Scene(network, Path(folder))
        try:
            for machine in WORKERS:
                print(f"worker {scene.start_worker(machine)}")
            for name in names or list(PROOFS):
                begun = time.monotonic()
                print(
                    f"{name}: {json.dumps(PROOFS[name](scene))} in {time.monotonic() - begun:.1f} s"
                )
        finally:
            scene.close()
        left = scene.left_over()
        assert not left, f"processes are left: {left}"
        print("nothing is left on any machine")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
