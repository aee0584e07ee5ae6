"""A worker process of the pool: trains the runs that it is sent, one after another.

    stdin:  one request per line    {"action": "train", "monitor": false, "config": {…}}
    stdout: one message per line    {"step": 12}, then one of
            {"finished": SUMMARY}, {"stopped": SUMMARY}, {"failed": MESSAGE}, {"crashed": TRACEBACK}

torch and transformers are imported once per worker, not once per run. SIGINT, SIGTERM and the end
of stdin (the pool has died) save the run that is training, as they do in `glasshouse train`.
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
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.errors import GlasshouseError

Message = dict[str, Any]


def main() -> None:
    """Handle requests until stdin ends."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # anything else that is printed goes to stderr
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit)
    requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_read_requests, args=(requests, busy), daemon=True).start()

    def send(message: Message) -> None:
        with suppress(BrokenPipeError):  # the pool has died; `_read_requests` handles that
            pipe.write(json.dumps(message) + "\n")

    while (request := requests.get()) is not None:
        busy.set()
        result = _handle(request, send)
        busy.clear()
        send(result)
        gc.collect()  # free this run's model before the next one is loaded


def _exit(number: int, frame: FrameType | None) -> None:
    """Between runs there is nothing to save. During a run, `training.interruption` handles signals."""
    raise SystemExit(128 + number)


def _read_requests(requests: queue.SimpleQueue[Message | None], busy: threading.Event) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)
    if busy.is_set():  # the pool has died or is closing: save the run and stop
        os.kill(os.getpid(), signal.SIGTERM)


def _handle(request: Message, send: Callable[[Message], None]) -> Message:
    """Do what is requested; errors that the user can fix become a `failed` message."""
    try:
        return _train_or_check(request, send)
    except GlasshouseError as error:
        return {"failed": str(error)}
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return {"failed": "the disk is full. Free some space and run the same command again."}
        return {"crashed": traceback.format_exc()}
    except Exception:
        return {"crashed": traceback.format_exc()}


def _train_or_check(request: Message, send: Callable[[Message], None]) -> Message:
    from glasshouse.training.display import Display
    from glasshouse.training.run import TrainingRun

    class StepReporter(Display):
        def step(self, row: dict[str, Any], groups: list[Any]) -> None:
            send({"step": row["step"]})

        def resumed(self, step: int, path: Path) -> None:
            send({"step": step})

    run = TrainingRun(Config.model_validate(request["config"]), StepReporter())
    if request["action"] == "check":
        run.backend.close()
        return {"finished": {}}
    summary = run.train()
    if "after" not in summary:
        return {"stopped": summary}
    if request["monitor"]:
        from glasshouse.measurement.monitor_run import monitor_run

        monitor_run(Path(summary["run"]), first_and_last=True)
    return {"finished": summary}


if __name__ == "__main__":
    main()
