"""Several hosts, for real: machines in network namespaces, workers on them, mutual TLS between them.

    python tests/hosts_proof.py [reach security cut kill orphans train]      (`make hosts-proof`)

A proof is a function from a `Scene` (the network, its certificates, its workers) to what it measured;
it raises if its claim does not hold. What happens on the controller's machine is a function of this
file that is run there: `scene.inside("noticed", …)`. Any actor class can take the part of `Steady`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from network import Network, stop  # noqa: E402

CONTROLLER, STRANGER, WORKERS = 1, 4, (2, 3)
PORTS = "26600-26609"
NOTICED_WITHIN = 5.0
Measured = dict[str, Any]


class Scene:
    """A network of four machines: a controller, two workers, a stranger."""

    def __init__(self, network: Network, folder: Path, python: str = sys.executable) -> None:
        self.network, self.folder, self.python = network, folder, python
        self.workers: dict[int, subprocess.Popen[str]] = {}
        self.process: dict[int, int] = {}
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        plain = {k: v for k, v in os.environ.items() if not k.startswith("HYPERACTOR_")}
        self.environment = {
            **plain, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(paths),  # the workers import the actors of this file
        }  # fmt: skip
        machines = (CONTROLLER, *WORKERS)
        self.glasshouse("hosts", "certificates", "--out", str(folder / "own"),
                        *[f"--host={network.ip(m)}" for m in machines])  # fmt: skip
        self.glasshouse("hosts", "certificates", "--out", str(folder / "other"),
                        f"--host={network.ip(STRANGER)}")  # fmt: skip

    def certificates(self, machine: int) -> Path:
        return self.folder / "own" / self.network.ip(machine)

    def address(self, machine: int) -> str:
        return f"tls://{self.network.ip(machine)}:{PORTS}"

    @property
    def overrides(self) -> list[str]:
        """The configuration of a run on the two workers."""
        return [
            "hosts.kind=addresses",
            f"hosts.addresses=[{','.join(self.address(m) for m in WORKERS)}]",
            f"hosts.certificates={self.certificates(CONTROLLER)}",
        ]

    def glasshouse(self, *arguments: str) -> None:
        subprocess.run(
            [self.python, "-m", "glasshouse", *arguments], env=self.environment, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def start_worker(self, machine: int) -> str:
        """Start a worker and wait for its line; returns where it listens."""
        worker = self.network.start(
            machine,
            [self.python, "-m", "glasshouse", "hosts", "worker", "--address", self.address(machine),
             "--certificates", str(self.certificates(machine))],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.workers[machine] = worker
        assert worker.stdout
        line = next((x for x in worker.stdout if x.startswith(("Ready", "error"))), "it ended")
        assert line.startswith("Ready"), line
        self.process[machine] = int(line.split("process ")[1].rstrip(".\n"))
        return line.split()[3].rstrip(",")

    def kill_worker(self, machine: int) -> None:
        """The power goes: the worker, what stands above it and what it started are gone at once."""
        from glasshouse.run.hosts.worker import session

        self.workers[machine].kill()
        for process in session(self.process[machine]):
            os.kill(process, signal.SIGKILL)
        self.workers.pop(machine).wait()

    @contextmanager
    def inside(
        self, what: str, machine: int = CONTROLLER, environment: dict[str, str] | None = None,
        **arguments: Any,
    ) -> Iterator[Inside]:  # fmt: skip
        """Run a function of this file on a machine and talk with it by lines of JSON."""
        process = self.network.start(
            machine, [self.python, str(Path(__file__).resolve()), "--inside", what, json.dumps(arguments)],
            env={**self.environment, **(environment or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield Inside(process)
        finally:
            stop(process)

    def close(self) -> None:
        for worker in self.workers.values():
            stop(worker)

    def left_over(self) -> list[int]:
        """Processes that still live on any of the machines."""
        names = [self.network.name(m) for m in range(1, self.network.count + 1)]
        listed = [subprocess.run(["ip", "netns", "pids", n], capture_output=True, text=True).stdout
                  for n in names]  # fmt: skip
        return [int(pid) for pids in listed for pid in pids.split()]


class Inside:
    """The other end of a function that runs on a machine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return json.loads(line)

    def say(self, **what: Any) -> None:
        assert self.process.stdin
        print(json.dumps(what), file=self.process.stdin, flush=True)


# --- what runs on a machine --------------------------------------------------------------------


def told() -> Any:
    return json.loads(sys.stdin.readline())


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def noticed(overrides: list[str], lost: str, actor: str = "hosts_proof:Steady") -> None:
    """Work on every host until one is lost, say when that was noticed, go on with the others, and
    take it back when told to."""
    from importlib import import_module

    import monarch.actor

    from glasshouse import config
    from glasshouse.run.hosts import open_hosts

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

    from glasshouse.run.hosts.address import Address
    from glasshouse.run.hosts.attached import with_identity

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


# --- the proofs --------------------------------------------------------------------------------


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


STEPS = 60
SMALL = [
    f"steps={STEPS}", "data.problems=16", "generate.samples=8", "generate.chunk=2", "generate.max_tokens=64",
    "evaluate.problems=0", "monarch.verify_every=5",
]  # fmt: skip


def train(scene: Scene, disturbed: bool = True, options: tuple[str, ...] = ()) -> Measured:
    """A run on two hosts, one of which is cut off, comes back, is killed and joins again: its
    weights are those of the undisturbed run in one process, bit for bit."""
    inline, spread = scene.folder / f"inline{disturbed}", scene.folder / f"spread{disturbed}"
    scene.glasshouse("train", "--quiet", *SMALL, *options, f"out={inline}")
    run = scene.network.start(
        CONTROLLER,
        [scene.python, "-m", "glasshouse", "train", "--quiet", *SMALL, *options, *scene.overrides,
         "placement=monarch", "monarch.generators=4", f"out={spread}"],
        env=scene.environment,
    )  # fmt: skip
    found: Measured = {}
    try:
        story = Story(spread, run)
        if disturbed:
            story.until_step(3)
            found["cut noticed"] = story.disturb(lambda: scene.network.cut(3))
            found["cut mended"] = story.mend(lambda: scene.network.mend(3))
            found["kill noticed"] = story.disturb(lambda: scene.kill_worker(3))
            found["kill mended"] = story.mend(lambda: scene.start_worker(3) and None)
            found["steps to go"] = STEPS - story.step()
        assert run.wait(600) == 0
    finally:
        scene.network.mend(3)
        stop(run)
    found["events"] = {
        k: n for k, n in story.counted().items() if k in ("host", "fault", "respawn")
    }
    ours, theirs = (
        (out / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()
        for out in (spread, inline)
    )
    assert ours == theirs, "the weights differ"
    return found


class Story:
    """What a run's directory tells while it goes on."""

    def __init__(self, out: Path, run: subprocess.Popen[str]) -> None:
        self.out, self.run = out, run
        self.hosts = 0

    def lines(self, name: str) -> list[Any]:
        file = self.out / "results" / name
        listed = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in listed if line.endswith("\n")]

    def step(self) -> int:
        return len(self.lines("metrics.jsonl"))

    def counted(self) -> dict[str, int]:
        kinds = [event["event"] for event in self.lines("events.jsonl")]
        return {kind: kinds.count(kind) for kind in kinds}

    def until_step(self, step: int) -> None:
        self._until(lambda: self.step() >= step, f"step {step}")

    def disturb(self, how: Callable[[], None]) -> float:
        """Seconds until the run says that a host is lost; it goes on without it."""
        seconds = self._heard(how, "lost")
        assert seconds < NOTICED_WITHIN, f"the run noticed after {seconds} s"
        self.until_step(self.step() + 2)
        return seconds

    def mend(self, how: Callable[[], None]) -> float:
        """Seconds until the run says that it is back."""
        seconds = self._heard(how, "back")
        self.until_step(self.step() + 2)
        return seconds

    def _heard(self, how: Callable[[], None], what: str) -> float:
        begun = time.monotonic()
        how()
        self._until(lambda: len(self._of(what)) > self.hosts // 2, what)
        self.hosts += 1
        return round(time.monotonic() - begun, 1)

    def _of(self, what: str) -> list[Any]:
        return [e for e in self.lines("events.jsonl") if e["event"] == "host" and e["how"] == what]

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + 120
        while not holds():
            assert self.run.poll() is None, f"the run ended before: {what}"
            assert time.monotonic() < until, f"not within 120 s: {what}"
            time.sleep(0.1)


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


if __name__ == "__main__" and "--inside" in sys.argv:
    import hosts_proof  # under its own name, so that the workers can import its actors

    hosts_proof.INSIDE[sys.argv[2]](**json.loads(sys.argv[3]))
elif __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
else:
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
