"""Monarch's processes: import Monarch, start actors in new processes, wait for their answers."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import glasshouse
from glasshouse.distributed.monarch.shared_weights import open_unnamed_file
from glasshouse.distributed.monarch_settings import configure_monarch
from glasshouse.distributed.monarch_sockets import monarch_sockets_in_own_directory
from glasshouse.errors import ConfigError, install_command

TAIL_CHARACTERS = 2000
"""How much of a dead process's output is shown."""

POLL_SECONDS = 0.1


SPAWN_TIMEOUT = "monarch.spawn_timeout"
UPDATE_TIMEOUT = "monarch.update_timeout"
CHUNK_TIMEOUT = "monarch.chunk_timeout"
"""Config keys, for messages."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host on which processes can be started."""

    mesh: Any
    """Monarch's mesh of this one host."""
    name: str = "local"
    is_local: bool = True
    """Whether it shares memory and process ids with this process."""


class ProcessDied(RuntimeError):
    """A process ended or did not answer in time; the text says which."""


class ProcessTimeout(ProcessDied):
    """A process did not answer in time; it may still be running."""


def import_monarch() -> Any:
    """Return `monarch.actor`, imported with our settings."""
    configure_monarch(several_hosts=False)
    try:
        import monarch.actor
    except ImportError:
        raise ConfigError(
            "backend is monarch, but torchmonarch is not installed. Set backend=local, or install it: "
            f"{install_command('monarch')}"
        ) from None
    return monarch.actor


def local_host() -> Host:
    """Return this host; starts Monarch in this process."""
    actor = import_monarch()
    actor.unhandled_fault_hook = lambda failure: None  # the default ends this process
    # Monarch prints the path of its log file when it starts.
    with stderr_to_null(), monarch_sockets_in_own_directory():
        host = Host(actor.this_host())
    atexit.register(_shut_down_monarch)  # runs before Monarch's own, which was registered earlier
    return host


def _shut_down_monarch() -> None:
    """What Monarch does at exit, without its traceback if a lost host does not answer."""
    from monarch.actor import shutdown_context

    with contextlib.suppress(Exception):
        shutdown_context(host_timeout=0.3).get(timeout=1.0)


@dataclass(slots=True)
class ActorProcesses:
    """One mesh of processes, with the same actor in each.

    Example: `ActorProcesses.spawn(host, "generator-0", GeneratorActor)`
    """

    name: str
    mesh: Any
    actor: Any
    log: Any
    host: Host
    stopped: Callable[[], bool]
    """Whether the run has ended, so that waiting is pointless."""
    pids: list[int] = field(default_factory=list)
    pidfds: list[int] = field(default_factory=list)
    """One per process of this host; readable once the process has ended."""
    reported_dead: bool = False
    """Whether Monarch reported the processes or their host as dead."""

    @classmethod
    def spawn(
        cls,
        host: Host,
        name: str,
        actor_class: type,
        *,
        count: int = 1,
        threads: int = 1,
        stopped: Callable[[], bool] = lambda: False,
    ) -> ActorProcesses:
        """Start the processes; `wait_until_started` waits for them."""
        from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
        from monarch.actor import default_bootstrap_cmd

        log, path = open_unnamed_file()
        command = BootstrapCommand(
            sys.executable,
            None,
            ["-P", str(Path(__file__).with_name("bootstrap.py")), path],
            {**default_bootstrap_cmd().env, **process_environment(threads)},
        )
        mesh = host.mesh.spawn_procs(
            per_host={"procs": count},
            name=name,
            bootstrap_command=command if host.is_local else None,
        )
        return cls(name, mesh, mesh.spawn(name, actor_class), log, host, stopped)

    def wait_until_started(self, timeout: float) -> None:
        """Wait until the processes run, and record their ids."""
        self.pids = self.wait(self.actor.pid.call(), timeout, SPAWN_TIMEOUT)
        if self.host.is_local and hasattr(os, "pidfd_open"):
            try:
                self.pidfds = [os.pidfd_open(pid) for pid in self.pids]
            except ProcessLookupError:
                raise ProcessDied("its process ended") from None

    def wait(self, future: Any, timeout: float = 0.0, key: str = "") -> list[Any]:
        """Return every process's answer in order of rank.

        Raises `ProcessDied` as soon as a process has ended or, with a timeout, takes too long. `key` is the config
        key of the timeout, for the message.
        """
        deadline = time.monotonic() + timeout if timeout else float("inf")
        while True:
            answers = self.poll(future)
            if answers is not None:
                return answers
            if time.monotonic() > deadline:
                raise ProcessTimeout(
                    f"it did not answer within {timeout:g} s" + (f" ({key})" if key else "")
                )

    def poll(self, future: Any) -> list[Any] | None:
        """Return the answers, or None if they are not there after a moment; raise `ProcessDied`."""
        try:
            return [value for _, value in future.get(timeout=POLL_SECONDS).items()]
        except TimeoutError:
            if self.has_exited:
                raise ProcessDied("its process ended") from None
            if self.stopped():
                raise ProcessDied("the run ended") from None
            return None
        except Exception as error:  # Monarch raises different types for the same cause
            self.reported_dead = True
            raise ProcessDied(_last_line(error)) from None

    @property
    def has_exited(self) -> bool:
        """Whether any of the processes has ended."""
        return bool(self.pidfds and select.select(self.pidfds, [], [], 0)[0])

    def stderr_tail(self) -> str:
        """Return the end of the processes' output; after a crash, the start of the crash report."""
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        crash = text.rfind("Fatal Python error")
        return str(text[crash:][:TAIL_CHARACTERS] if crash >= 0 else text[-TAIL_CHARACTERS:])

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


def process_environment(threads: int) -> dict[str, str]:
    """Return the variables of a new process: its thread count, and the path of this package."""
    package = str(Path(glasshouse.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)}


def _last_line(error: Exception) -> str:
    """Return the last line of Monarch's long error text, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@contextlib.contextmanager
def stderr_to_null() -> Iterator[None]:
    """Drop what native code writes to stderr."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
