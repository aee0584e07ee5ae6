"""Train several runs at a time in worker processes that are reused (`study.worker`).

    requests ──► ProcessPool ──► worker ──► run directories
                     └─────────► worker

A worker that crashes is replaced and its run resumes from its last checkpoint, up to `MAX_CRASHES`
times per run. On Ctrl-C each worker saves the run that it is training, then the pool ends.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any, Literal

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunError

MAX_CRASHES = 2
"""Worker crashes per run before the run fails."""
SHUTDOWN_SECONDS = 10.0
"""How long a worker may take to save its run when the pool closes; then it is killed."""
STDERR_TAIL = 800
"""Characters of a worker's stderr or traceback that an error message shows."""


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


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    request: RunRequest | None = None
    """The run that it is working on; None while idle."""
    partial_line: bytes = b""

    @classmethod
    def start(cls) -> _Worker:
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process runs
        process = subprocess.Popen(
            [sys.executable, "-m", "glasshouse.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only the pool, which forwards it
        )
        return cls(process, stderr)

    def send(self, request: RunRequest) -> None:
        self.request = request
        message = {
            "action": request.action,
            "monitor": request.monitor,
            "config": request.config.model_dump(mode="json"),
        }
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it died while idle: `receive` reports that
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def fileno(self) -> int:
        assert self.process.stdout
        return self.process.stdout.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None if the process has ended."""
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self.partial_line = (self.partial_line + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def describe_crash(self) -> str:
        """How the ended process ended, with the last line of its stderr."""
        code = self.process.wait()
        self.stderr.seek(0)
        tail = self.stderr.read().decode(errors="replace").strip()[-STDERR_TAIL:]
        cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"its worker process {cause}" + (f" ({tail.splitlines()[-1]})" if tail else "")

    def close_stdin(self) -> None:
        """Ask it to end: at once if idle, after saving its run if busy."""
        assert self.process.stdin
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        """Wait until the process has ended; kill it if that takes too long."""
        assert self.process.stdout
        self.close_stdin()
        try:
            self.process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
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
                worker.close_stdin()  # all at once, so that they save their runs in parallel
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
            busy = [worker for worker in self.workers if worker.request]
            if not busy:
                break
            for worker in _wait_for_output(busy):
                request, messages = worker.request, worker.receive()
                assert request
                if messages is not None:
                    yield from _parse_messages(worker, request, messages)
                    continue
                crash = worker.describe_crash()
                worker.close()
                self.workers.remove(worker)
                if self.stop_signals:
                    continue
                crashes[request] += 1
                if crashes[request] >= MAX_CRASHES:
                    raise RunError(
                        f"{request.name} failed: {crash}, {MAX_CRASHES} times. Run the same command to "
                        "resume from its last checkpoint; if memory ran out, use a smaller --jobs."
                    )
                waiting.appendleft(request)
                yield RunRestarted(request, f"{request.name}: {crash}; resuming it in a new one.")
        if self.stop_signals:
            raise KeyboardInterrupt

    def _idle_worker(self) -> _Worker | None:
        for worker in self.workers:
            if worker.request is None:
                return worker
        if len(self.workers) == self.size:
            return None
        self.workers.append(_Worker.start())
        return self.workers[-1]

    def _forward_signal(self, number: int, frame: FrameType | None) -> None:
        """First signal: workers save their runs. Second: they stop at once. Third: they are killed."""
        self.stop_signals += 1
        for worker in self.workers:
            with suppress(ProcessLookupError):
                worker.process.send_signal(
                    signal.SIGINT if self.stop_signals <= 2 else signal.SIGKILL
                )


def _wait_for_output(workers: list[_Worker]) -> list[_Worker]:
    """Block until some workers have written output or ended."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker, selectors.EVENT_READ, worker)
        return [key.data for key, _ in selector.select()]


def _parse_messages(
    worker: _Worker, request: RunRequest, messages: Iterable[dict[str, Any]]
) -> Iterator[PoolEvent]:
    """See `study.worker` for the messages. All but `step` end the request."""
    for message in messages:
        if "step" in message:
            yield StepDone(request, message["step"])
            continue
        worker.request = None
        if "finished" in message:
            yield RunFinished(request, message["finished"])
        elif "failed" in message:
            raise RunError(f"{request.name}: {message['failed']}")
        elif "crashed" in message:
            raise RunError(f"{request.name} failed: {message['crashed'].strip()[-STDERR_TAIL:]}")
