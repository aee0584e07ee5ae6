"""A process that is told by lines of JSON what to do next, and answers each with a line of JSON.

Each side of the benchmark lives in a process of its own for a whole regime, and the controller
lets one at a time take one step: rounds are interleaved at the finest grain, start-up is paid
once, and a process's peak memory is its own.
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
HERE = Path(__file__).resolve().parent


class Worker:
    """The controller's end.

    Example: `Worker("ours.py", {"threads": 1, …}, threads=1).ask("step")["seconds"]`
    """

    def __init__(self, script: str, settings: dict[str, Any], threads: int) -> None:
        package = str(HERE.parent / "shared")
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.script = script
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), json.dumps(settings)],
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
        self.ready = self._answer()

    def ask(self, what: str) -> Reply:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()  # the worker's loop ends
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _answer(self) -> Reply:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise SystemExit(
                f"The benchmark's process {self.script} ended with code {code}; see above."
            )
        answer: Reply = json.loads(line)
        return answer


class Port:
    """The worker's end. Standard output belongs to answers; whatever prints goes to stderr."""

    def __init__(self) -> None:
        self.out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, pids: Sequence[int] = (), **answer: Any) -> None:
        self.out.write(json.dumps({**answer, "peak_mb": peak_mb(pids)}) + "\n")
        self.out.flush()

    def asked(self) -> Iterator[str]:
        """What the controller wants, until it hangs up."""
        while line := sys.stdin.readline():
            yield json.loads(line)

    def serve(
        self,
        does: dict[str, Callable[[], Reply]],
        pids: Callable[[], Sequence[int]] = lambda: (),
    ) -> None:
        self.say(pids())
        for what in self.asked():
            self.say(pids(), **does[what]())


def peak_mb(pids: Sequence[int]) -> float:
    """The largest resident sizes so far of this process and of those that work for it."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return own + sum(int(s.partition("VmHWM:")[2].split()[0]) / 1024 for s in status)
