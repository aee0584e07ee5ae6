"""Glasshouse beside TRL's GRPOTrainer and transformers' generate: seconds, tokens, memory.

    make bench                                         # its own environment, then this script
    python bench/bench.py --regime natural fixed long-prompt --rounds 9 --out build/bench/bench.json
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
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from worker_process import FOLDER, WorkerProcess
from workload import REGIMES, Workload

from glasshouse.files import write_text

Contender = dict[str, Any]
ONE_PROCESS, SKIPPING = "glasshouse", "glasshouse, skipping"
"""In one process: without skipping, which is the work that TRL does, and with rows of zero advantage
skipped."""


def contenders(options: argparse.Namespace) -> dict[str, Contender]:
    """All contenders by name."""
    measured: dict[str, Contender] = {
        ONE_PROCESS: {"script": "glasshouse_worker.py", "threads": 1, "skip": False},
        "glasshouse, two threads": {"script": "glasshouse_worker.py", "threads": 2, "skip": False},
        SKIPPING: {"script": "glasshouse_worker.py", "threads": 1, "skip": True},
    }
    for generators, learners in options.processes:
        plural = "s" if generators > 1 else ""
        name = f"glasshouse, {generators} generator{plural} + {learners} learner"
        name += "s" if learners > 1 else ""
        measured[name] = {
            "script": "glasshouse_worker.py", "threads": 1, "skip": False, "backend": "monarch", "chunk_size": 16,
            "gradient_blocks": learners, "monarch": {"generators": generators, "learners": learners},
        }  # fmt: skip
    for threads in options.threads:
        for cache in options.caches:
            for parts in options.microbatches:
                name = f"TRL, {threads} thread{'s' if threads > 1 else ''}, {cache} cache"
                name += f", {parts} microbatches" if parts > 1 else ""
                settings = {"threads": threads, "cache": cache, "microbatches": parts}
                measured[name] = {"script": "trl_worker.py", **settings}
    return measured


def measure(
    work: Workload, contenders_by_name: dict[str, Contender], options: argparse.Namespace
) -> dict[str, Any]:
    """Measures rounds of one generation each, then of one step each; the first ones warm up."""
    workers: dict[str, WorkerProcess] = {}
    replies: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {"generate": [], "step": []} for name in contenders_by_name
    }
    console = Console(stderr=True)
    try:
        for name, contender in contenders_by_name.items():
            console.print(f"[dim]{work.regime}: starting {name}")
            settings = {k: v for k, v in contender.items() if k != "script"}
            settings["work"] = asdict(work)
            workers[name] = WorkerProcess(contender["script"], settings, contender["threads"])
        for command in ("generate", "step"):
            for number in range(options.warm + options.rounds):
                console.print(f"[dim]{work.regime}: {command} {number + 1}")
                for name, worker in workers.items():
                    reply = worker.run(command)
                    replies[name][command].append(reply)
                    expected = work.groups_per_step * work.group_size * work.max_new_tokens
                    if not work.spec.ends and reply["tokens"] != expected:
                        raise SystemExit(
                            f"{name} generated {reply['tokens']} tokens where all lengths are fixed "
                            f"and {expected} were expected: the comparison would not be at equal work."
                        )
    finally:
        for worker in workers.values():
            worker.close()
    return {
        name: summarize(replies[name], options.warm, workers[name].ready["peak_mb"])
        for name in contenders_by_name
    }


def summarize(
    replies: dict[str, list[dict[str, Any]]], warm: int, before_mb: float
) -> dict[str, Any]:
    """Medians over the rounds after the warm-up."""
    generations, steps = replies["generate"][warm:], replies["step"][warm:]
    measured: dict[str, Any] = {
        "step_seconds": median_of(steps, "seconds"),
        "step_cpu_seconds": median_of(steps, "cpu_seconds"),
        "step_seconds_each": [round(s["seconds"], 4) for s in steps],
        "tokens_per_step": median_of(steps, "tokens"),
        "completions_per_step": steps[-1]["rows"],
        "generate_tokens_per_second": statistics.median(
            g["tokens"] / g["seconds"] for g in generations
        ),
        "peak_mb": steps[-1]["peak_mb"],
        "peak_mb_above_start": steps[-1]["peak_mb"] - before_mb,
    }
    if "learned_rows" in steps[-1]:
        measured["learned_rows"] = median_of(steps, "learned_rows")
    return measured


def median_of(rows: list[dict[str, Any]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def compute_ratios(measured: dict[str, Any]) -> dict[str, Any]:
    """Each of ours against the best settings of TRL and transformers."""
    theirs = {name: f for name, f in measured.items() if name.startswith("TRL")}
    if not theirs:
        return {}
    best = min(theirs, key=lambda name: theirs[name]["step_seconds"])
    fastest = max(theirs, key=lambda name: theirs[name]["generate_tokens_per_second"])
    smallest = min(f["peak_mb"] for f in theirs.values())
    ratios: dict[str, Any] = {"best_trl": best, "best_generate": fastest}
    for name, ours in measured.items():
        if name in theirs:
            continue
        per_token = [f["step_seconds"] / f["tokens_per_step"] for f in (theirs[best], ours)]
        ratios[name] = {
            "step": theirs[best]["step_seconds"] / ours["step_seconds"],
            "step_per_token": per_token[0] / per_token[1],
            "generate": ours["generate_tokens_per_second"]
            / theirs[fastest]["generate_tokens_per_second"],
            "memory": smallest / ours["peak_mb"],
        }
    return ratios


def print_results(work: Workload, measured: dict[str, Any], against: dict[str, Any]) -> None:
    console = Console(width=max(120, Console().width))
    table = Table(
        title=f"{work.regime}: {REGIMES[work.regime].description} ({work.groups_per_step} × {work.group_size}, "
        f"up to {work.max_new_tokens} new tokens)",
        title_justify="left",
    )
    table.add_column("")
    heads = ("s per step", "× TRL", "CPU s", "tokens", "rows learned",
             "gen tok/s", "× generate", "peak MB", "above start")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for name, f in measured.items():
        ratio = against.get(name, {})
        mark = {against.get("best_trl"): "best"}.get(name, "")
        quick = "best" if name == against.get("best_generate") else ""
        table.add_row(
            name,
            f"{f['step_seconds']:.3f}",
            f"{ratio['step']:.2f}" if ratio else mark,
            f"{f['step_cpu_seconds']:.3f}",
            f"{f['tokens_per_step']:.0f}",
            f"{f.get('learned_rows', f['completions_per_step']):.0f}",
            f"{f['generate_tokens_per_second']:,.0f}",
            f"{ratio['generate']:.2f}" if ratio else quick,
            f"{f['peak_mb']:.0f}",
            f"{f['peak_mb_above_start']:.0f}",
        )
    console.print(table)
    ours = [name for name in against if name.startswith(ONE_PROCESS) and name != SKIPPING]
    if ours:
        name = min(ours, key=lambda name: measured[name]["step_seconds"])
        r = against[name]
        console.print(
            f"At equal work, each at its best on this machine ({name}), a step is {r['step']:.2f} times as "
            f"fast as TRL's, generation {r['generate']:.2f} times transformers'. In one process: "
            f"{against[ONE_PROCESS]['step']:.2f} times, and TRL's smallest process needs "
            f"{against[ONE_PROCESS]['memory']:.2f} times the memory.\n"
        )


def check_losses_agree() -> bool:
    """Whether losses and gradients equal those of TRL; otherwise there is nothing to compare."""
    paths = str(FOLDER.parent / "shared")
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, str(FOLDER / "compare_trl.py")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    print((process.stdout.strip() or process.stderr.strip()).splitlines()[-1])
    return process.returncode == 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="pocket", help="`pocket` or a model folder")
    parser.add_argument("--regime", nargs="+", default=["natural", "fixed"], choices=REGIMES)
    parser.add_argument("--groups-per-step", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=72)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2, help="warm-up rounds, not counted")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2],
                        help="thread counts to try for TRL")  # fmt: skip
    parser.add_argument("--caches", nargs="+", default=["dynamic", "static"])
    parser.add_argument("--microbatches", nargs="+", type=int, default=[1],
                        help="number of microbatches per step of TRL")  # fmt: skip
    parser.add_argument("--processes", nargs="*", type=parse_processes, default=[(1, 1), (2, 2)],
                        help="generator and learner processes to try, as 2+2")  # fmt: skip
    parser.add_argument("--skip-compare", action="store_true", help="do not run compare_trl.py")
    parser.add_argument("--out", type=Path, default=Path("build/bench/bench.json"))
    return parser.parse_args()


def parse_processes(text: str) -> tuple[int, int]:
    generators, _, learners = text.partition("+")
    return int(generators), int(learners or 1)


def main() -> int:
    options = parse_arguments()
    result: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()},
        "rounds": options.rounds,
        "regimes": {},
    }
    if not options.skip_compare:
        result["losses_agree"] = check_losses_agree()
        if not result["losses_agree"]:
            print("Losses or gradients differ from TRL's: run bench/compare_trl.py to see which.")
            return 1
    for regime in options.regime:
        sizes = {k: getattr(options, k) for k in ("groups_per_step", "group_size", "max_tokens")}
        work = Workload(model=options.model, regime=regime, **sizes)
        measured = measure(work, contenders(options), options)
        ratios = compute_ratios(measured)
        print_results(work, measured, ratios)
        result["regimes"][regime] = {
            "work": asdict(work),
            "contenders": measured,
            "ratios": ratios,
        }
    write_text(options.out, json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
