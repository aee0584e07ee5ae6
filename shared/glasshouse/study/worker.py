"""One hand of a crew: a process that trains the runs it is given, one after another.

    stdin:  a job a line            {"work": "train", "monitor": false, "config": {…}}
    stdout: what it has to say      {"step": 12}, and at the end {"done": {…}} or {"failed": "…"}

Torch and transformers are imported once, not once a run. SIGINT and SIGTERM end a run as they end
`glasshouse train`: it is saved. So does the end of stdin, for then the crew is gone.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from glasshouse.config import Config
from glasshouse.errors import GlasshouseError

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Work until there is no more to do."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, jobs, busy), daemon=True).start()

    def tell(answer: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the crew is gone; stdin says so too, and the run is saved
            answers.write(json.dumps(answer) + "\n")

    while (job := jobs.get()) is not None:
        busy.set()
        answer = _answer(job, tell)
        busy.clear()
        tell(answer)
        gc.collect()  # two models at once are one too many


def _end(number: int, frame: FrameType | None) -> None:
    """Between runs there is nothing to save; while one trains, `run.interrupt` listens instead."""
    raise SystemExit(128 + number)


def _listen(
    stdin: TextIO, jobs: queue.SimpleQueue[dict[str, Any] | None], busy: threading.Event
) -> None:
    for line in stdin:
        jobs.put(json.loads(line))
    jobs.put(None)
    if busy.is_set():  # nobody is left who would want the answer
        os.kill(os.getpid(), signal.SIGTERM)


def _answer(job: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """The job done, or why it is not: in a sentence if a person can mend it."""
    try:
        return _work(job, tell)
    except GlasshouseError as error:
        return {"failed": str(error)}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"failed": "the disk is full. Free some space; the same command goes on."}
        return {"broken": traceback.format_exc()}
    except Exception:
        return {"broken": traceback.format_exc()}


def _work(job: dict[str, Any], tell: Tell) -> dict[str, Any]:
    from glasshouse.train.display import Display
    from glasshouse.train.loop import Run

    class Steps(Display):
        def step(self, row: dict[str, Any], groups: list[Any]) -> None:
            tell({"step": row["step"]})

        def resumed(self, step: int, path: Path) -> None:
            tell({"step": step})

    run = Run(Config.model_validate(job["config"]), Steps())
    if job["work"] == "check":
        run.placement.close()
        return {"done": {}}
    summary = run.train()
    if "after" not in summary:
        return {"stopped": summary}
    if job["monitor"]:
        from glasshouse.evaluation.monitor_run import monitor

        monitor(Path(summary["run"]), ends=True)
    return {"done": summary}


if __name__ == "__main__":
    main()
