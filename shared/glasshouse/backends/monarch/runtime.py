"""Monarch itself: its settings, its processes, and waiting for what they answer."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import glasshouse
from glasshouse.backends.monarch.shared_weights import unnamed
from glasshouse.errors import ConfigError

SETTINGS = {
    # how soon a death is seen that no process id tells of; a silent process is not at once a dead one
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "1s",
    "HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE": "10s",
    "HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE": "10s",
    # importing torch takes long on a busy machine
    "HYPERACTOR_MESH_PROC_SPAWN_MAX_IDLE": "300s",
    "HYPERACTOR_MESH_ACTOR_SPAWN_MAX_IDLE": "300s",
    "HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "300s",
}
LAST_WORDS = 2000
"""So many characters of a dead process's output are shown."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where processes may be put."""

    host: Any
    """Monarch's host mesh, of one host."""
    name: str = "here"
    local: bool = True
    """Whether it shares memory and process ids with this process."""


class Died(RuntimeError):
    """A process ended, or did not answer in time; the text says which."""


def load() -> Any:
    """`monarch.actor`, imported with our settings."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import monarch.actor
    except ImportError:
        raise ConfigError(
            "backend is monarch, but torchmonarch is not installed. Install it with: "
            'pip install "glasshouse[monarch]", or set backend=local.'
        ) from None
    from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env

    reload_config_from_env()  # somebody may have imported it before
    return monarch.actor


def this_place() -> Place:
    """This host, with Monarch's root begun in this process."""
    actor = load()
    actor.unhandled_fault_hook = lambda failure: None  # the default ends this process
    with _without_stderr():  # it says there where its own log is
        return Place(actor.this_host())


@dataclass(slots=True)
class Processes:
    """One mesh of processes with one kind of actor on it.

    Example: `Processes.spawn(place, "generator-0", GeneratorActor)`
    """

    name: str
    mesh: Any
    actor: Any
    log: Any
    place: Place
    stopped: Callable[[], bool]
    """Whether waiting has lost its point."""
    pids: list[int] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    """A pidfd for each process of this host: readable once it has ended."""
    lost: bool = False
    """Monarch itself has found them dead, or their host."""

    @classmethod
    def spawn(
        cls,
        place: Place,
        name: str,
        kind: type,
        *,
        count: int = 1,
        threads: int = 1,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Processes:
        """Start them; `answer` waits until they are there."""
        from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
        from monarch.actor import default_bootstrap_cmd

        log, path = unnamed()
        plain = default_bootstrap_cmd()
        command = BootstrapCommand(
            sys.executable,
            None,
            ["-P", str(Path(__file__).with_name("process.py")), path],
            {**plain.env, **environment(threads)},
        )
        mesh = place.host.spawn_procs(
            per_host={"procs": count}, name=name, bootstrap_command=command if place.local else None
        )
        return cls(name, mesh, mesh.spawn(name, kind), log, place, stopped)

    def answer(self, timeout: float) -> None:
        """Wait for the processes to be there, and learn their ids."""
        self.pids = self.wait(self.actor.pid.call(), timeout)
        if self.place.local and hasattr(os, "pidfd_open"):
            try:
                self.watched = [os.pidfd_open(pid) for pid in self.pids]
            except ProcessLookupError:
                raise Died("its process ended") from None

    def wait(self, future: Any, timeout: float = 0.0) -> list[Any]:
        """What each process answers, in order of rank; `Died` as soon as one has ended or, with a
        timeout, when it takes too long."""
        deadline = time.monotonic() + timeout if timeout else float("inf")
        while True:
            try:
                return [value for _, value in future.get(timeout=0.1).items()]
            except TimeoutError:
                if self.ended:
                    raise Died("its process ended") from None
                if self.stopped():
                    raise Died("the run ended") from None
                if time.monotonic() > deadline:
                    raise Died(f"it did not answer within {timeout:g} s") from None
            except Exception as error:  # Monarch's own kinds differ by how it found out
                self.lost = True
                raise Died(_reason(error)) from None

    @property
    def ended(self) -> bool:
        """Whether any of the processes has."""
        return bool(self.watched and select.select(self.watched, [], [], 0)[0])

    def last_words(self) -> str:
        """The end of what they printed; of a crash, its beginning, since that says what it was."""
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        crash = text.rfind("Fatal Python error")
        return str(text[crash:][:LAST_WORDS] if crash >= 0 else text[-LAST_WORDS:])

    def end(self) -> None:
        """At once, and for good: they hold nothing that is not elsewhere."""
        for watched in self.watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(watched, signal.SIGKILL)
            os.close(watched)
        if not self.watched and not self.lost:  # a dead host would be asked in vain
            with contextlib.suppress(Exception):
                self.mesh.stop().get(timeout=5)
        self.watched = []
        self.log.close()


def environment(threads: int) -> dict[str, str]:
    """What a process of ours finds around it: its threads, and this very package."""
    package = str(Path(glasshouse.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)}


def _reason(error: Exception) -> str:
    """The last line of Monarch's long story."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def gone(pids: Sequence[int], within: float) -> bool:
    """Whether these processes have all ended by then."""
    deadline = time.monotonic() + within
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
