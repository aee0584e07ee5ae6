"""Train several runs at a time in worker processes that are reused.

    requests ──► ProcessPool ──► serve_requests() ──► run directories
                     └─────────► serve_requests()

torch and transformers are imported once per worker, not once per run. A worker that crashes is
replaced and its run resumes from its last checkpoint, up to `MAX_CRASHES` times per run; the other
runs go on. On Ctrl-C, and if the process of the pool is killed, each worker saves the run that it is
training and ends.
"""

from __future__ import annotations

import errno
import gc
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, GlasshouseError, RunError

MAX_CRASHES = 2
"""Worker crashes per run before the run fails."""
SHUTDOWN_SECONDS = 10.0
"""How long a worker may take to save its run when the pool closes; then it is killed."""
STDERR_TAIL = 800
"""Characters of a worker's stderr or traceback that an error message shows."""
WORKER = "from glasshouse.study.process_pool import serve_requests; serve_requests({})"
"""The program of a worker, with its end of the pipe. multiprocessing would import the caller's main
module in it, and run a script that calls `run_study` a second time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRequest:
    """A run to train, or only to check: built, but not started."""

    name: str
    """For messages, such as `The run kl seed 3`."""
    config: Config
    action: Literal["train", "check"] = "train"
    monitor: bool = False
    """After training, monitor the first and last checkpoint like `glasshouse monitor --first-and-last`."""


@dataclass(frozen=True, slots=True)
class StepDone:
    request: RunRequest
    step: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    request: RunRequest
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunRestarted:
    """The worker crashed; another one resumes the run."""

    request: RunRequest
    message: str


PoolEvent = StepDone | RunFinished | RunRestarted
Message = tuple[Literal["step", "finished", "stopped", "failed"], Any]
"""What a worker sends. `step` is followed by its number, the others end the request: they come with a
summary, or with the reason of the failure."""


class _Worker:
    """A worker process, seen from the pool."""

    def __init__(self) -> None:
        self.request: RunRequest | None = None
        """The run that it is working on; None while idle."""
        self.connection, its_end = Pipe()
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(its_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self.stderr,
            stderr=self.stderr,
            pass_fds=[its_end.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only the pool, which forwards it
        )
        its_end.close()

    def send(self, request: RunRequest) -> None:
        self.request = request
        with suppress(OSError):  # it died while idle: `receive` notices that
            self.connection.send(request)

    def receive(self) -> Message | None:
        """A message; None if the process has ended."""
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            return None
        return message

    def describe_crash(self) -> str:
        """How the ended process ended, with the last line of its stderr."""
        code = self.process.wait()
        self.stderr.seek(0)
        tail = self.stderr.read().decode(errors="replace").strip()[-STDERR_TAIL:]
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"its worker process {cause}" + (f" ({tail.splitlines()[-1]})" if tail else "")

    def close(self) -> None:
        """Wait until the process has ended; kill it if that takes too long."""
        self.connection.close()
        try:
            self.process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stderr.close()


@dataclass(slots=True)
class ProcessPool:
    """Up to `size` worker processes, started when they are needed.

    Example:
        with ProcessPool(2) as pool:
            for event in pool.run(requests):
                if isinstance(event, RunFinished): print(event.summary)
    """

    size: int
    workers: list[_Worker] = field(default_factory=list)
    stop_signals: int = 0
    """How many times SIGINT or SIGTERM has arrived."""
    previous_handlers: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"--jobs is {self.size}; it must be at least 1.")

    def __enter__(self) -> ProcessPool:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread: the caller handles signals
                self.previous_handlers[number] = signal.signal(number, self._forward_signal)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for worker in self.workers:
                worker.connection.close()  # all at once: they save their runs in parallel
            for worker in self.workers:
                worker.close()
        finally:
            for number, handler in self.previous_handlers.items():
                signal.signal(number, handler)

    def run(self, requests: Iterable[RunRequest]) -> Iterator[PoolEvent]:
        """Do all requests and yield events as they arrive.

        The first run that fails raises `RunError`. After a signal, raises `KeyboardInterrupt` once
        all workers have saved their runs.
        """
        waiting, crashes = deque(requests), Counter[RunRequest]()
        while True:
            while waiting and not self.stop_signals and (worker := self._idle_worker()):
                worker.send(waiting.popleft())
            busy = {worker.connection: worker for worker in self.workers if worker.request}
            if not busy:
                break
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                request, message = worker.request, worker.receive()
                assert request
                if message is None:
                    crash = worker.describe_crash()
                    worker.close()
                    self.workers.remove(worker)
                    if self.stop_signals:
                        continue
                    crashes[request] += 1
                    if crashes[request] >= MAX_CRASHES:
                        raise RunError(
                            f"{request.name} failed: {crash}, {MAX_CRASHES} times. Run the same command "
                            "to resume from its last checkpoint; if memory ran out, use a smaller --jobs."
                        )
                    waiting.appendleft(request)
                    yield RunRestarted(
                        request, f"{request.name}: {crash}; resuming it in a new one."
                    )
                    continue
                kind, value = message
                if kind == "step":
                    yield StepDone(request, value)
                    continue
                worker.request = None
                if kind == "failed":
                    raise RunError(f"{request.name}{value}")
                if kind == "finished":
                    yield RunFinished(request, value)
        if self.stop_signals:
            raise KeyboardInterrupt

    def _idle_worker(self) -> _Worker | None:
        for worker in self.workers:
            if worker.request is None:
                return worker
        if len(self.workers) == self.size:
            return None
        self.workers.append(_Worker())
        return self.workers[-1]

    def _forward_signal(self, number: int, frame: FrameType | None) -> None:
        """First signal: workers save their runs. Second: they stop at once. Third: they are killed."""
        self.stop_signals += 1
        for worker in self.workers:
            with suppress(ProcessLookupError):
                worker.process.send_signal(
                    signal.SIGINT if self.stop_signals <= 2 else signal.SIGKILL
                )


# --- in the worker ---------------------------------------------------------------------------


def serve_requests(pipe: int) -> None:
    """Handle the requests that arrive at a file descriptor, until the pool closes it or dies."""
    connection = Connection(pipe)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    requests: queue.SimpleQueue[RunRequest | None] = queue.SimpleQueue()
    busy = threading.Event()

    def read_requests() -> None:
        with suppress(EOFError, OSError):
            while True:
                requests.put(connection.recv())
        requests.put(None)
        if busy.is_set():  # the pool has died or is closing: save the run and stop
            os.kill(os.getpid(), signal.SIGTERM)

    def send(message: Message) -> None:
        with suppress(OSError):  # the pool has died; `read_requests` handles that
            connection.send(message)

    threading.Thread(target=read_requests, daemon=True).start()
    while (request := requests.get()) is not None:
        busy.set()
        result = handle_request(request, send)
        busy.clear()
        send(result)
        gc.collect()  # free this run's model before the next one is loaded


def _exit(number: int, frame: FrameType | None) -> None:
    """Between runs there is nothing to save. During a run, `training.interruption` handles signals."""
    raise SystemExit(128 + number)


def handle_request(request: RunRequest, send: Callable[[Message], None]) -> Message:
    """Train or check; a failure is a message that follows the name of the run."""
    try:
        return _train_or_check(request, send)
    except GlasshouseError as error:
        return "failed", f": {error}"
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "failed", (": the disk is full. Free some space and run the same command again.")
        return "failed", f" failed: {traceback.format_exc().strip()[-STDERR_TAIL:]}"


def _train_or_check(request: RunRequest, send: Callable[[Message], None]) -> Message:
    from glasshouse.training.display import Display
    from glasshouse.training.run import TrainingRun

    class StepReporter(Display):
        def step(self, row: dict[str, Any], groups: list[Any]) -> None:
            send(("step", row["step"]))

        def resumed(self, step: int, path: Path) -> None:
            send(("step", step))

    run = TrainingRun(request.config, StepReporter())
    if request.action == "check":
        run.backend.close()
        return "finished", {}
    summary = run.train()
    if "after" not in summary:
        return "stopped", summary
    if request.monitor:
        from glasshouse.measurement.monitor_run import monitor_run

        monitor_run(Path(summary["run"]), first_and_last=True)
    return "finished", summary
