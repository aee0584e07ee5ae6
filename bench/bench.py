"""Glasshouse beside TRL's GRPOTrainer and transformers' generate: seconds, tokens, memory.

    make bench                                         # its own environment, then this script
    python bench/bench.py --regime natural fixed --rounds 9 --out build/bench/bench.json
    PYTHONPATH=shared python bench/bench.py …           # where the package is not installed

Both sides get the same saved model folder, prompts in the same order, reward, fp32, AdamW, learning
rate and number of completions; `compare_trl.py` runs first and shows that loss and gradients agree on
a frozen batch. Every contender is a separate process, and they alternate step by step, so that a busy
moment hits all of them. TRL counts with its best of threads and caches.

Glasshouse can skip rows of zero advantage exactly: they add nothing to the gradient. That is reported
separately; the headline ratio is without skipping, at equal work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernel_gemm import measure_gemm
from rich.console import Console
from rich.table import Table
from worker_process import FOLDER, WorkerProcess
from workload import REGIMES, Workload

from glasshouse.files import write_text
from glasshouse.kernel.build import find_variant

ONE_PROCESS, SKIPPING = "glasshouse", "glasshouse, skipping"
"""In one process: without skipping, which is the work that TRL does, and with rows of zero advantage
skipped."""


def list_contenders(processes: Sequence[tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """The settings of all contenders by name."""
    contenders: dict[str, dict[str, Any]] = {
        ONE_PROCESS: {"threads": 1, "skip": False},
        "glasshouse, two threads": {"threads": 2, "skip": False},
        SKIPPING: {"threads": 1, "skip": True},
    }
    for generators, learners in processes:
        contenders[f"glasshouse, {generators} generators + {learners} learners"] = {
            "threads": 1, "skip": False, "backend": "monarch", "chunk_size": 16,
            "gradient_blocks": learners, "monarch": {"generators": generators, "learners": learners},
        }  # fmt: skip
    for threads in (1, 2):
        for cache in ("dynamic", "static"):
            name = f"TRL, {threads} thread{'s' if threads > 1 else ''}, {cache} cache"
            contenders[name] = {"threads": threads, "cache": cache, "microbatches": 1}
    return contenders


def start_worker(name: str, settings: dict[str, Any], work: Workload) -> WorkerProcess:
    script = "trl_worker.py" if name.startswith("TRL") else "glasshouse_worker.py"
    return WorkerProcess(script, settings | {"work": asdict(work)}, settings["threads"])


def measure(work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Measures rounds of one generation each, then of one step each; the first ones warm up."""
    console = Console(stderr=True)
    contenders = list_contenders(options.processes)
    workers: dict[str, WorkerProcess] = {}
    replies: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {"generate": [], "step": []} for name in contenders
    }
    try:
        for name, settings in contenders.items():
            console.print(f"[dim]{work.regime}: starting {name}")
            workers[name] = start_worker(name, settings, work)
        for command in ("generate", "step"):
            for number in range(options.warm + options.rounds):
                console.print(f"[dim]{work.regime}: {command} {number + 1}")
                for name, worker in workers.items():
                    reply = worker.run(command)
                    replies[name][command].append(reply)
                    expected = work.groups_per_step * work.group_size * work.max_tokens
                    if not work.ends and reply["tokens"] != expected:
                        raise SystemExit(
                            f"{name} generated {reply['tokens']} tokens where all lengths are fixed "
                            f"and {expected} were expected: the comparison would not be at equal work."
                        )
    finally:
        for worker in workers.values():
            worker.close()
    measured = {}
    for name, by_command in replies.items():
        generations = by_command["generate"][options.warm :]
        speeds = [reply["tokens"] / reply["seconds"] for reply in generations]
        measured[name] = {
            **summarize(by_command["step"][options.warm :]),
            "generate_tokens_per_second": statistics.median(speeds),
            "peak_mb_above_start": by_command["step"][-1]["peak_mb"]
            - workers[name].ready["peak_mb"],
        }
    return measured


def summarize(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over steps, and the largest peak of memory."""

    def median_of(name: str) -> float:
        return statistics.median(step[name] for step in steps)

    def median_of_each(kind: str) -> dict[str, float]:
        return {name: statistics.median(s[kind][name] for s in steps) for name in steps[-1][kind]}

    return {
        "step_seconds": median_of("seconds"),
        "step_seconds_each": [round(step["seconds"], 4) for step in steps],
        "step_cpu_seconds": median_of("cpu_seconds"),
        "tokens_per_step": median_of("tokens"),
        "completions_per_step": steps[-1]["rows"],
        **{kind: median_of_each(kind) for kind in ("operations", "phases") if kind in steps[-1]},
        "peak_mb": max(step["peak_mb"] for step in steps),
        **({"learned_rows": median_of("learned_rows")} if "learned_rows" in steps[-1] else {}),
    }


def compute_ratios(measured: dict[str, Any]) -> dict[str, Any]:
    """Each of ours against the best settings of TRL and transformers."""
    theirs = {name: f for name, f in measured.items() if name.startswith("TRL")}
    if not theirs:
        return {}
    best = min(theirs, key=lambda name: theirs[name]["step_seconds"])
    smallest = min(f["peak_mb"] for f in theirs.values())
    ratios: dict[str, Any] = {"best_trl": best}
    for name, ours in measured.items():
        if name in theirs:
            continue
        per_token = [f["step_seconds"] / f["tokens_per_step"] for f in (theirs[best], ours)]
        ratios[name] = {
            "step": theirs[best]["step_seconds"] / ours["step_seconds"],
            "step_per_token": per_token[0] / per_token[1],
            "memory": smallest / ours["peak_mb"],
        }
        if speed := ours.get("generate_tokens_per_second"):
            fastest = max(f["generate_tokens_per_second"] for f in theirs.values())
            ratios[name]["generate"] = speed / fastest
    return ratios


def print_table(title: str, measured: dict[str, Any], ratios: dict[str, Any]) -> None:
    """One row per contender; what was not measured is left out."""
    console = Console(width=max(120, Console().width))
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = {"s per step": "step_seconds", "CPU s": "step_cpu_seconds", "tokens": "tokens_per_step",
               "rows learned": "learned_rows", "gen tok/s": "generate_tokens_per_second",
               "peak MB": "peak_mb", "above start": "peak_mb_above_start"}  # fmt: skip
    kinds = {"× TRL": "step", "per token": "step_per_token", "× generate": "generate"}
    for head in (*columns, *kinds):
        table.add_column(head, justify="right")
    for name, f in measured.items():
        values = [f.get(key) for key in columns.values()]
        values += [ratios.get(name, {}).get(key) for key in kinds.values()]
        cells = ("" if v is None else f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in values)
        table.add_row(name, *cells)
    console.print(table)


def write_results(file: Path, result: dict[str, Any], rounds: int) -> None:
    head = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": name_cpu(),
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "load": os.getloadavg(),
        },
        "rounds": rounds,
    }
    write_text(file, json.dumps(head | result, indent=1) + "\n")
    print(f"wrote {file}")


def name_cpu() -> str:
    """The model of the CPU, and the widest registers that torch and the kernel use."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return f"{names[0] if names else platform.machine()} ({find_variant()})"
    return platform.machine()


def compute_gemm_shares(model: str, measured: dict[str, Any]) -> dict[str, float]:
    """The share of its own GEMM speed that the kernel reaches in each phase, in one process with one thread."""
    ours, gemm = measured[ONE_PROCESS], measure_gemm(model)
    shares = {
        phase: ours["operations"][phase] / 1e9 / speed / ours["phases"][phase]
        for phase, speed in gemm.items()
        if ours["operations"]
    }
    for phase, share in shares.items():
        print(f"{phase}: {share:.0%} of the kernel's own GEMM speed, {gemm[phase]:.0f} GFLOP/s")
    return shares


def losses_agree() -> bool:
    """Whether losses and gradients equal those of TRL; otherwise there is nothing to compare."""
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent / "shared")}
    command = [sys.executable, str(FOLDER / "compare_trl.py")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    print((process.stdout.strip() or process.stderr.strip()).splitlines()[-1])
    return process.returncode == 0


def parse_processes(text: str) -> tuple[int, int]:
    generators, _, learners = text.partition("+")
    return int(generators), int(learners or 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="pocket", help="`pocket` or a model folder")
    parser.add_argument("--regime", nargs="+", default=list(REGIMES), choices=REGIMES)
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for both sides")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2, help="warm-up rounds, not counted")
    parser.add_argument("--processes", nargs="*", type=parse_processes, default=[(1, 1), (2, 2)],
                        help="generator and learner processes to try, as 2+2")  # fmt: skip
    parser.add_argument("--skip-compare", action="store_true", help="do not run compare_trl.py")
    parser.add_argument("--out", type=Path, default=Path("build/bench/bench.json"))
    options = parser.parse_args()
    if not options.skip_compare and not losses_agree():
        print("Losses or gradients differ from TRL's: run bench/compare_trl.py to see which.")
        return 1
    regimes: dict[str, Any] = {}
    for regime in options.regime:
        work = Workload(
            model=options.model, regime=regime, device=options.device, dtype=options.dtype
        )
        measured = measure(work, options)
        ratios = compute_ratios(measured)
        print_table(f"{regime}: {REGIMES[regime]}", measured, ratios)
        shares = compute_gemm_shares(work.model, measured)
        regimes[regime] = {"work": asdict(work), "contenders": measured, "ratios": ratios}
        regimes[regime] |= {"gemm_shares": shares}
    write_results(options.out, {"regimes": regimes}, options.rounds)
    print(f"{name_cpu()}, {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
