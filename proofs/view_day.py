"""A day of `glasshouse view` in minutes: the memory of the server over 24 hours of polling.

    python -m proofs.view_day

The server runs in a separate process, over a run that logs one step per minute. For each of the 1,440
minutes it looks at the files as often as in a minute (150 times), searches the folders for new runs (20
times) and turns the loop of an open page's stream (240 times), without the pauses in between. The page's
requests come over HTTP: those that follow each new step, and every ten minutes all views of the run. The
memory grows by what the run logs, so six more hours follow in which it logs nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "view_proof"
MINUTES = 24 * 60
IDLE_MINUTES = 6 * 60
MAX_BYTES_PER_STEP = 20_000
"""Growth from hour 6 to hour 24: metrics of a step, and the index of its 32 rollouts."""
MAX_IDLE_GROWTH_MB = 2.0
"""Growth in the hours without a new step."""
EACH_STEP = ("runs", "run?run=day", "rollouts?run=day")
EVERY_TEN = (
    "run?run=day", "rollouts?run=day&text=24&correct=no", "rollouts?run=day&ref=train.1.7&full=1",
    "problems?run=day", "compare?run=day",
)  # fmt: skip


def measure_day(minutes: int = MINUTES) -> tuple[dict[str, Any], list[str]]:
    """Returns the figures, and what exceeds a limit."""
    from tests.view.example_runs import log_step, make_step, open_run

    runs = FOLDER / "day"
    shutil.rmtree(runs, ignore_errors=True)
    started = time.perf_counter()
    requests, memory = 0, list[float]()
    with open_run(runs / "day", steps=minutes + 1, done=1, groups=4, samples=8) as directory:
        command = [sys.executable, "-m", "proofs.view_day", "--serve", str(runs)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            for minute in range(1, minutes + IDLE_MINUTES + 1):
                if minute <= minutes:
                    log_step(directory, minute + 1, make_step(minute + 1, 4, 8))
                server.stdin.write("minute\n")
                server.stdout.readline()
                paths = EACH_STEP if minute % 10 else (*EACH_STEP, *EVERY_TEN)
                for path in paths:
                    with urlopen(f"{address}api/{path}", timeout=120) as answer:
                        json.load(answer)
                    requests += 1
                memory.append(resident_mb(server.pid))
                if minute % 60 == 0:
                    print(f"  hour {minute // 60:2}: {memory[-1]:.1f} MB", flush=True)
            server.stdin.close()
            counts = json.loads(server.stdout.readline())
    hours = {hour: round(memory[min(hour * 60, minutes) - 1], 1) for hour in (1, 6, 12, 18, 24)}
    early = min(6 * 60, minutes - 1)
    per_step = (memory[minutes - 1] - memory[early - 1]) * 2**20 / (minutes - early)
    idle = memory[-1] - memory[minutes - 1]
    figures = {
        **counts, "requests": requests, "memory by hour, MB": hours, "bytes per step": round(per_step),
        "growth without steps, MB": round(idle, 2), "seconds": round(time.perf_counter() - started),
    }  # fmt: skip
    print(f"  {json.dumps(figures)}", flush=True)
    failures = []
    if per_step > MAX_BYTES_PER_STEP:
        failures.append(f"memory grew by {per_step:.0f} bytes per step")
    if idle > MAX_IDLE_GROWTH_MB:
        failures.append(f"memory grew by {idle:.1f} MB without a new step")
    return figures, failures


def resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


# --- the process of the server -----------------------------------------------------------------


def serve(runs: Path) -> None:
    """Prints the address; then works through one minute for each line of its input."""
    import uvicorn

    from glasshouse.view import app, library
    from glasshouse.view.server import bind_socket

    served = library.Library([runs])
    application = app.make_app(served)
    listener = bind_socket(0)
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    polls, scans = round(60 / app.LIVE_SECONDS), round(60 / library.SCAN_SECONDS)
    turns = round(60 / app.LIVE_SECONDS)
    app.LIVE_SECONDS = 0.0
    counts = asyncio.run(run_minutes(served, polls, scans, turns))
    server.should_exit = True
    thread.join(10)
    print(json.dumps(counts), flush=True)


async def run_minutes(served: Any, polls: int, scans: int, turns: int) -> dict[str, int]:
    from glasshouse.view.app import stream_changes

    counts = {"polls": 0, "scans": 0, "turns of the stream": 0, "messages of the stream": 0}
    minute_over = asyncio.Event()
    left = 0

    async def is_disconnected() -> bool:
        """Counts the turns of the loop, and waits for the next minute when those of one are done."""
        nonlocal left
        while left == 0:
            minute_over.set()
            await asyncio.sleep(0.001)
        if left > 0:
            left -= 1
            counts["turns of the stream"] += 1
        return left < 0

    async def read_stream() -> None:
        async for _ in stream_changes(served, "day", is_disconnected):
            counts["messages of the stream"] += 1

    reader = asyncio.create_task(read_stream())
    while await asyncio.to_thread(sys.stdin.readline):
        for poll in range(polls):
            is_scan = poll % (polls // scans) == 0 and poll // (polls // scans) < scans
            served._scanned = float("-inf") if is_scan else time.monotonic()
            served.poll()
            counts["polls"] += 1
            counts["scans"] += is_scan
        minute_over.clear()
        left = turns
        await minute_over.wait()
        print("done", flush=True)
    left = -1
    await reader
    return counts


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--serve"]:
        serve(Path(arguments[1]))
        return 0
    minutes = int(arguments[0]) if arguments else MINUTES
    _, failures = measure_day(minutes)
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
