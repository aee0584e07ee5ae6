"""Train several runs at a time in worker processes that are reused.

    runs ──► ProcessPool ──► serve() ──► run directories
                 └─────────► serve()

torch and transformers are imported once per worker, not once per run. A worker that crashes is
replaced and its run resumes from its last checkpoint, up to `MAX_CRASHES` times per run; the other
runs go on. A worker that gets SIGTERM saves the run that it is training and ends: after Ctrl-C, when
the pool closes, and (by the kernel) if the process of the pool is killed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, NamedTuple

from glasshouse.errors import ConfigError, GlasshouseError, RunError
from glasshouse.study.spec import StudyRun

MAX_CRASHES = 2
"""Worker crashes per run before the run fails."""
STDERR_TAIL = 800
"""Characters of a worker's stderr or traceback that an error message shows."""
WORKER = "from glasshouse.study.process_pool import serve; serve({}, {})"
"""The program of a worker, with its end of the pipe and the pool's process. multiprocessing would import the
caller's main module in it, and run a script that calls `run_study` a second time."""
PR_SET_PDEATHSIG = 1

Send = Callable[[str, Any], None]


class PoolEvent(NamedTuple):
    run: StudyRun
    kind: str
    """`step`, `warning`, `finished` or `restarted`."""
    value: Any
    """The number of the step, the kind and text of a warning, the summary of the run, or why another worker
    resumes it."""


class _Worker:
    """A worker process, seen from the pool."""

    def __init__(self) -> None:
        self.run: StudyRun | None = None
        """The run that it is working on; None while idle."""
        self.connection, its_end = Pipe()
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(its_end.fileno(), os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=self.stderr,
            stderr=self.stderr,
            pass_fds=[its_end.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only the pool
        )
        its_end.close()

    def describe_crash(self) -> str:
        """How the ended process ended, with the last line of its stderr."""
        code = self.process.wait()
        self.stderr.seek(0)
        tail = self.stderr.read().decode(errors="replace").strip()[-STDERR_TAIL:]
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"its worker process {cause}" + (f" ({tail.splitlines()[-1]})" if tail else "")

    def close(self) -> None:
        """Wait until the process has ended: it completes a step and saves it. Kill it at another Ctrl-C."""
        try:
            self.process.wait()
        except KeyboardInterrupt:
            self.process.kill()
            self.process.wait()
        self.connection.close()
        self.stderr.close()


class ProcessPool:
    """Up to `size` worker processes, started when they are needed.

    Example:
        with ProcessPool(2) as pool:
            for event in pool.train(runs):
                if event.kind == "finished": print(event.value)
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(f"--jobs is {size}; it must be at least 1.")
        self.size, self.workers = size, list[_Worker]()
        self.previous_handler: Any = None

    def __enter__(self) -> ProcessPool:
        with suppress(ValueError):  # not the main thread: the caller handles signals
            handler = signal.default_int_handler  # SIGTERM is handled like Ctrl-C
            self.previous_handler = signal.signal(signal.SIGTERM, handler)
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.process.terminate()  # all at once: they save their runs in parallel
        for worker in self.workers:
            worker.close()
        if self.previous_handler is not None:
            signal.signal(signal.SIGTERM, self.previous_handler)

    def train(self, runs: Iterable[StudyRun], only_check: bool = False) -> Iterator[PoolEvent]:
        """Train all runs, or only build them, and yield events as they arrive. The first run that fails
        raises `RunError`."""
        waiting, crashes = deque(runs), Counter[Path]()
        while True:
            while waiting and (idle := self._idle_worker()):
                idle.run = waiting.popleft()
                with suppress(OSError):  # it died while idle: `recv` notices that
                    idle.connection.send((idle.run, only_check))
            busy: dict[Any, _Worker] = {w.connection: w for w in self.workers if w.run}
            if not busy:
                return
            for connection in wait(list(busy)):
                worker = busy[connection]
                run = worker.run
                assert run
                name = f"The run {run.name} ({run.base})"
                try:
                    kind, value = worker.connection.recv()
                except (EOFError, OSError):
                    self.workers.remove(worker)
                    crash = worker.describe_crash()
                    worker.close()
                    crashes[run.path] += 1
                    if crashes[run.path] == MAX_CRASHES:
                        raise RunError(
                            f"{name} failed: {crash}, {MAX_CRASHES} times. Run the same command to resume "
                            "from its last checkpoint; if memory ran out, use a smaller --jobs."
                        ) from None
                    waiting.appendleft(run)
                    yield PoolEvent(run, "restarted", f"{name}: {crash}; resuming it in a new one.")
                    continue
                if kind in ("finished", "failed"):
                    worker.run = None
                if kind == "failed":
                    raise RunError(f"{name}{value}")
                yield PoolEvent(run, kind, value)

    def _idle_worker(self) -> _Worker | None:
        idle = next((worker for worker in self.workers if worker.run is None), None)
        if idle is None and len(self.workers) < self.size:
            idle = _Worker()
            self.workers.append(idle)
        return idle


# --- in the worker ---------------------------------------------------------------------------


def serve(pipe: int, pool: int) -> None:
    """Handle the runs that arrive at a file descriptor, until the pool ends this process or dies."""
    for number in (signal.SIGINT, signal.SIGTERM):  # during a run, `training.interruption` saves it
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    with suppress(AttributeError):  # not on Linux: it ends after its run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    connection = Connection(pipe)

    def send(kind: str, value: Any) -> None:
        with suppress(OSError):  # the pool has died
            connection.send((kind, value))

    with suppress(EOFError, OSError):
        while os.getppid() == pool:
            run, only_check = connection.recv()
            send(*handle_run(run, only_check, send))
            gc.collect()  # free this run's model before the next one is loaded
            from glasshouse.models.devices import (
                return_freed_memory,
            )  # imports torch, as the run did

            return_freed_memory()


def handle_run(run: StudyRun, only_check: bool, send: Send) -> tuple[str, Any]:
    """("finished", summary), or ("failed", the reason that follows the name of the run)."""
    try:
        return "finished", _train(run, only_check, send)
    except (GlasshouseError, OSError) as error:
        return "failed", f": {error}"
    except Exception:
        return "failed", f" failed: {traceback.format_exc().strip()[-STDERR_TAIL:]}"


def _train(run: StudyRun, only_check: bool, send: Send) -> dict[str, Any]:
    from glasshouse.measurement.monitor_run import monitor_run
    from glasshouse.study.records import describe_run
    from glasshouse.training.display import Display
    from glasshouse.training.run import TrainingRun

    class Reporter(Display):
        def step(self, row: dict[str, Any], groups: list[Any]) -> None:
            send("step", row["step"])

        def resumed(self, step: int, path: Path) -> None:
            send("step", step)

        def warn(self, message: str, kind: str = "") -> None:
            send("warning", (kind, message))

    training = TrainingRun(run.config, Reporter())
    if only_check:
        training.backend.close()
        return {}
    summary = training.train()
    if "after" not in summary:
        raise SystemExit("it was interrupted")
    if run.config.monitor.at_end:
        monitor_run(summary["run"], first_and_last=True, progress=False)
    return summary | {"record": describe_run(run)}
