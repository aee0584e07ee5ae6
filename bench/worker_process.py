"""Worker processes of the benchmark, controlled by lines of JSON on stdin and stdout.

Each side runs in its own process for a whole regime, and the controller lets one process at a time
take one step: rounds are interleaved at the finest grain, start-up is paid once, and the peak memory
of each process is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

Reply = dict[str, Any]
FOLDER = Path(__file__).resolve().parent


class WorkerProcess:
    """The controller's end of the connection.

    Example: `WorkerProcess("glasshouse_worker.py", {"threads": 1, …}, threads=1).run("step")["seconds"]`
    """

    def __init__(self, script: str, settings: dict[str, Any], threads: int) -> None:
        package = str(FOLDER.parent / "shared")
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.script = script
        self.process = subprocess.Popen(
            [sys.executable, str(FOLDER / script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "OMP_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "false",
                "HF_HUB_OFFLINE": "1",
            },
        )
        self.ready = self._read_reply()

    def run(self, command: str) -> Reply:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read_reply()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # ends the loop of the worker
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read_reply(self) -> Reply:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise SystemExit(
                f"The benchmark process {self.script} exited with code {code}; see its output above."
            )
        reply: Reply = json.loads(line)
        return reply


class Port:
    """The worker's end of the connection. Replies use stdout; other output is redirected to stderr."""

    def __init__(self) -> None:
        self.out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def reply(self, pids: Sequence[int] = (), **reply: Any) -> None:
        self.out.write(json.dumps({**reply, "peak_mb": peak_mb(pids)}) + "\n")
        self.out.flush()

    def commands(self) -> Iterator[str]:
        """Commands from the controller, until it closes the connection."""
        while line := sys.stdin.readline():
            yield json.loads(line)

    def serve(
        self,
        handlers: dict[str, Callable[[], Reply]],
        pids: Callable[[], Sequence[int]] = lambda: (),
    ) -> None:
        self.reply(pids())
        for command in self.commands():
            self.reply(pids(), **handlers[command]())


def peak_mb(pids: Sequence[int]) -> float:
    """Peak resident memory of this process and of these others."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return own + sum(int(s.partition("VmHWM:")[2].split()[0]) / 1024 for s in status)
