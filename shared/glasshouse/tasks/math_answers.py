"""Whether two mathematical expressions are equal, decided by math-verify in a process of its own.

Simplifying an expression can take any time and memory, and math-verify's own time limit works only in a
main thread. So a worker process compares, with limits; one that exceeds them is replaced, and the
expressions count as different. The worker reads pairs of JSON lines from its standard input.
"""

from __future__ import annotations

import atexit
import json
import selectors
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from glasshouse.errors import TaskError, install_command

CPU_SECONDS = 5.0
"""The limit for one comparison: of CPU time, so that a busy machine grades like a quiet one."""
WALL_SECONDS = 120.0
"""The limit for the worker's imports, and for a worker that does not answer."""
MEMORY_BYTES = 2 * 10**9
MAX_CHARS = 400

_worker: subprocess.Popen[str] | None = None


@lru_cache(maxsize=65_536)
def expressions_match(value: str, gold: str) -> bool:
    r"""Whether two expressions are equal. Raise a ValueError if the gold answer is not an expression.

    Example: `expressions_match("0.5", r"\frac{1}{2}")` is true, `expressions_match("11, 12", "12")` false.
    """
    if len(value) > MAX_CHARS or ("," in value) != ("," in gold):
        return False  # a list is not an answer where one value is asked for
    reply = _ask([value, gold])
    if reply == "gold":
        raise ValueError(f"The gold answer {gold!r} is not a mathematical expression.")
    return reply is True


def _ask(pair: list[str]) -> Any:
    """Send a pair to the worker; None if it exceeds its limits."""
    global _worker
    if _worker is None or _worker.poll() is not None:
        _worker = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        atexit.register(_worker.kill)
        if _read(_worker) != "ready":
            raise TaskError(
                f"Answers of the kind math need the extra `math`: {install_command('math')}"
            )
    assert _worker.stdin
    with suppress(BrokenPipeError):
        _worker.stdin.write(json.dumps(pair) + "\n")
        _worker.stdin.flush()
    reply = _read(_worker)
    if reply is None:
        _worker.kill()
        _worker.wait()
    return reply


def _read(worker: subprocess.Popen[str]) -> Any:
    assert worker.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        line = worker.stdout.readline() if selector.select(WALL_SECONDS) else ""
    return json.loads(line) if line else None


def _serve() -> None:
    import logging
    import resource
    import signal

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # ends the process
        value, gold = (
            parse(f"${text}$", fallback_mode="no_fallback", parsing_timeout=None)
            for text in json.loads(line)
        )
        equal = bool(gold) and bool(value) and verify(gold, value, timeout_seconds=None)
        print(json.dumps(equal if gold else "gold"), flush=True)


if __name__ == "__main__":
    _serve()
