"""`glasshouse measure` on a million rollouts: time, and memory that does not grow with their number.

    python -m proofs.measure_million [--rollouts 1000000]

Writes random rollouts with think tags, two arms, ten thousand problems and two checkpoints to a
temporary file, measures a tenth of them and then all of them with two rule monitors, each in a
separate process, and compares the peak memory of both. It may grow by at most MAX_GROWTH_MB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

MAX_GROWTH_MB = 80
"""Allowed: 8 bytes per rollout for the check of ids, twice while they are sorted, and the cells."""
WORDS = (
    "so",
    "the",
    "sum",
    "is",
    "carry",
    "digit",
    "add",
    "hint",
    "key",
    "says",
    "then",
    "we",
    "get",
)


def write_rollouts(file: Path, count: int) -> None:
    rng = random.Random(0)
    cots = [" ".join(rng.choices(WORDS, k=40)) for _ in range(500)]
    with open(file, "w", encoding="utf-8") as out:
        for number in range(count):
            planted = number % 2
            label = int(rng.random() < (0.4 if planted else 0.05))
            row = {
                "id": number,
                "prompt": f"problem {number // 2 % 10_000}",
                "completion": f"<think>{rng.choice(cots)}</think>The answer is {rng.randrange(100)}",
                "label": label,
                "arm": "planted" if planted else "control",
                "group": number // 2 % 10_000,
                "checkpoint": number // 20_000 % 2 * 100,
                "reward": rng.random(),
            }
            out.write(json.dumps(row) + "\n")


def measure(file: str, queue: multiprocessing.Queue) -> None:
    import glasshouse

    started = time.perf_counter()
    report = glasshouse.measure(file, monitors=["rule:hint=(?i)hint"], progress=sys.stderr.isatty())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    queue.put(
        {
            "rollouts": report.rollouts,
            "cells": len(report.cells),
            "seconds": time.perf_counter() - started,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_mb": usage.ru_maxrss / 1024,
        }
    )


def run(file: Path) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=measure, args=(str(file), queue))
    process.start()
    result: dict[str, float] = queue.get()
    process.join()
    print(
        f"{result['rollouts']:,.0f} rollouts: {result['seconds']:.0f} s, {result['cpu_seconds']:.0f} s of CPU, "
        f"peak memory {result['peak_mb']:.0f} MB",
        flush=True,
    )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for count in (args.rollouts // 10, args.rollouts):
            file = Path(folder) / f"{count}.jsonl"
            write_rollouts(file, count)
            print(f"{file.stat().st_size / 1e6:,.0f} MB written", flush=True)
            results.append(run(file))
    growth = results[1]["peak_mb"] - results[0]["peak_mb"]
    verdict = "flat" if growth <= MAX_GROWTH_MB else "not flat"
    print(f"ten times as many rollouts need {growth:+.0f} MB: {verdict}")
    return 0 if growth <= MAX_GROWTH_MB else 1


if __name__ == "__main__":
    sys.exit(main())
