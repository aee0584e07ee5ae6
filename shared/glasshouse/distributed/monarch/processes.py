"""Processes of Monarch: start actors in new processes, wait for their answers, notice when one dies, kill them."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import monarch.actor
from monarch.actor import Actor, endpoint

import glasshouse
from glasshouse.config.schema import Config
from glasshouse.distributed import bootstrap
from glasshouse.errors import GlasshouseError

TAIL_CHARACTERS = 2000
"""How much of a dead process's output is shown."""
POLL_SECONDS = 0.1
Timeout = Literal["spawn_timeout", "chunk_timeout", "update_timeout"]
"""A key of the config section `monarch`."""


class Host(NamedTuple):
    """A host on which processes can be started."""

    mesh: Any
    """Monarch's mesh of this one host."""
    name: str = "local"

    @property
    def is_local(self) -> bool:
        """Whether it shares memory and process ids with this process."""
        return self.name == "local"


class ProcessDied(RuntimeError):
    """A process ended or did not answer in time; the text says which."""


class ProcessTimeout(ProcessDied):
    """A process did not answer in time; it may still be running."""


class ProcessActor(Actor):
    """An actor in its own process. It has no constructor, so that a new process reports its id at once; an endpoint
    `open` loads what it needs."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def local_host() -> Host:
    """Return this host; starts Monarch in this process."""
    monarch.actor.unhandled_fault_hook = lambda failure: None  # the default ends this process
    # Monarch prints the path of its log file when it starts.
    with _stderr_to_null():
        host = Host(monarch.actor.this_host())
    atexit.register(_shut_down_monarch)  # runs before Monarch's own, which was registered earlier
    return host


def _shut_down_monarch() -> None:
    """What Monarch does at exit, without its traceback if a lost host does not answer."""
    with contextlib.suppress(Exception):
        monarch.actor.shutdown_context(host_timeout=0.3).get(timeout=1.0)


class ActorProcesses:
    """One mesh of processes, with the same actor in each.

    Example: `ActorProcesses(host, "generator-0", GeneratorActor, config).start(setup)`
    """

    def __init__(
        self,
        host: Host,
        name: str,
        actor_class: type[ProcessActor],
        config: Config,
        *,
        count: int = 1,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start processes in the background; once `stopped` the run has ended and waiting is pointless."""
        from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand

        self.host, self.config, self.stopped = host, config, stopped
        self.log, path = open_unnamed_file()
        command = BootstrapCommand(
            sys.executable,
            None,
            ["-P", bootstrap.__file__, "actor", str(os.getpid()), path],
            {**monarch.actor.default_bootstrap_cmd().env, **_process_environment(config.threads)},
        )
        self.mesh = host.mesh.spawn_procs(
            per_host={"procs": count},
            name=name,
            bootstrap_command=command if host.is_local else None,
        )
        self.actor = self.mesh.spawn(name, actor_class)
        self.pids: list[int] = []
        self.pidfds: list[int] = []
        """One per process of this host; readable once the process has ended."""
        self.reported_dead = False
        """Whether Monarch reported the processes or their host as dead."""

    def start(self, *arguments: Any) -> list[Any]:
        """Wait until the processes run, then call `open` with these arguments."""
        self.pids = self.wait(self.actor.pid.call(), "spawn_timeout")
        if self.host.is_local:
            try:
                self.pidfds = [os.pidfd_open(pid) for pid in self.pids]
            except ProcessLookupError:
                raise ProcessDied("its process ended") from None
        return self.wait(self.actor.open.call(*arguments), "spawn_timeout")

    def wait(self, future: Any, timeout: Timeout) -> list[Any]:
        """Return every process's answer in order of rank; raise an error of the user as it is, and `ProcessDied` as
        soon as a process has ended or takes too long."""
        seconds: float = getattr(self.config.monarch, timeout)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                return [value for _, value in future.get(timeout=POLL_SECONDS).items()]
            except TimeoutError:
                if self.has_exited:
                    raise ProcessDied("its process ended") from None
                if self.stopped():
                    raise ProcessDied("the run ended") from None
            except Exception as error:  # Monarch raises different types for the same cause
                cause = getattr(error, "exception", None)  # what an endpoint raised
                if isinstance(cause, GlasshouseError):
                    raise cause from None
                self.reported_dead = cause is None
                raise ProcessDied(_last_line(error)) from None
        raise ProcessTimeout(f"it did not answer within {seconds:g} s (monarch.{timeout})")

    @property
    def has_exited(self) -> bool:
        """Whether any of the processes has ended."""
        return bool(self.pidfds and select.select(self.pidfds, [], [], 0)[0])

    def read_output(self) -> str:
        """Return the end of the processes' output; after a crash, the start of the crash report."""
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        crash = text.rfind("Fatal Python error")
        tail = text[crash:][:TAIL_CHARACTERS] if crash >= 0 else text[-TAIL_CHARACTERS:]
        return tail or "(empty)"

    def kill(self) -> None:
        """Kill the processes at once; they hold no state that exists nowhere else."""
        for pidfd in self.pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        if not self.pidfds and not self.reported_dead:  # a dead host would not answer
            with contextlib.suppress(Exception):
                self.mesh.stop().get(timeout=5)
        self.pidfds, self.reported_dead = [], True
        self.log.close()


def open_unnamed_file(folder: Path | None = None) -> tuple[IO[bytes], str]:
    """Open a file without a name; return it and the path by which child processes can open it."""
    file = tempfile.TemporaryFile(dir=folder, prefix="glasshouse-")  # noqa: SIM115
    return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _process_environment(threads: int) -> dict[str, str]:
    package = str(Path(glasshouse.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)}


def _last_line(error: Exception) -> str:
    """Return the last line of Monarch's long error text, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@contextlib.contextmanager
def _stderr_to_null() -> Iterator[None]:
    """Drop what native code writes to stderr."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
