"""Hostile and damaged files of other people, each given to the real command in a process of its own.

    python -m proofs.hostile_files [--only zip_bomb …] [--variations 10] [--processes 2]

proofs/hostile_rollouts.py and proofs/hostile_folders.py make the files. Those of `REFUSED` must be refused; those of
`READABLE` may also be read: what is wrong with them changes no result, is printed as a result, or cannot be known.
Every command must end

- with exit code 2 and a sentence on stderr, or 0 or 1 where the file may be read; without a traceback or a signal,
- within CPU_SECONDS of CPU time and WALL_SECONDS in all, since other processes may delay it,
- with less than PEAK_BYTES of memory.

Prints a table of kinds with the sentence that people get. `make proofs ONLY=hostile` runs it;
tests/test_hostile_files.py runs one variation of each fast kind.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from proofs import hostile_folders  # noqa: F401, registers its kinds
from proofs.hostile_rollouts import READABLE, REFUSED

KINDS = REFUSED | READABLE
CPU_SECONDS, WALL_SECONDS = 10, 300
PEAK_BYTES = 2_000_000_000
ADDRESS_SPACE = 24_000_000_000
"""Most that a command may reserve, so that a file cannot stop the machine that runs the proof."""
FAULTS = ("traceback", "hang", "memory", "silent")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    output: str
    errors: str
    seconds: float = 0.0
    peak_bytes: int = 0


def run_case(name: str, variation: int) -> Outcome:
    """Make one file and run its command in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = KINDS[name](Path(scratch), variation)
        with (
            open(Path(scratch, ".out"), "w+b") as out,
            open(Path(scratch, ".err"), "w+b") as errors,
        ):
            child = subprocess.Popen(
                [sys.executable, "-m", "glasshouse", *arguments],
                cwd=scratch, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE,) * 2),
            )  # fmt: skip
            timer = threading.Timer(WALL_SECONDS, child.kill)
            timer.start()
            _, status, usage = os.wait4(child.pid, 0)
            timer.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
            texts = []
            for stream in (out, errors):
                stream.seek(0)
                texts.append(stream.read(1_000_000).decode(errors="replace").replace(scratch, "…"))
        make_removable(Path(scratch))
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Outcome(child.returncode, *texts, usage.ru_utime + usage.ru_stime, peak)


def make_removable(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)


def find_fault(name: str, outcome: Outcome) -> str:
    """What is wrong with the outcome, one of FAULTS; empty if nothing is."""
    if outcome.code == -9 or outcome.seconds > CPU_SECONDS:
        return "hang"
    if outcome.peak_bytes > PEAK_BYTES:
        return "memory"
    if outcome.code not in (0, 1, 2) or "Traceback (most recent" in outcome.errors:
        return "traceback"
    is_said = "error: " in outcome.errors if outcome.code == 2 else name in READABLE
    return "" if is_said else "silent"


def describe(outcome: Outcome) -> str:
    """The sentence that people get."""
    lines = outcome.errors.strip().splitlines() or ["read; no remark"]
    text = next((line for line in lines if "error: " in line), lines[0])
    return re.sub(r"\s+", " ", text)[:200]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs.hostile_files", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--variations", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(arguments)
    cases = [(name, variation) for name in args.only for variation in range(args.variations)]
    counts, slowest, largest, shown = Counter[str](), 0.0, 0, set[str]()
    with ThreadPoolExecutor(args.processes) as pool:
        for (name, variation), outcome in zip(
            cases, pool.map(lambda case: run_case(*case), cases), strict=True
        ):
            fault = find_fault(name, outcome)
            counts[fault] += 1
            slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.peak_bytes)
            if name not in shown:
                print(f"{name:<28} {describe(outcome)}", flush=True)
            shown.add(name)
            if fault:
                print(f"  FAULT: {fault}, variation {variation}: {outcome}", flush=True)
    print(
        f"\n{len(args.only)} kinds, {len(cases)} files and folders: "
        + ", ".join(f"{counts[fault]} {fault}" for fault in FAULTS)
        + f"; at most {slowest:.1f} s of CPU time and {largest / 1e6:,.0f} MB"
    )
    return 1 if any(counts[fault] for fault in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
