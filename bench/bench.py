"""Glasshouse beside TRL's GRPOTrainer and transformers' generate: seconds, tokens, memory.

    make bench                                         # its own environment, then this script
    python bench/bench.py --regime natural fixed long-prompt --rounds 9 --out bench/results.json
    PYTHONPATH=shared python bench/bench.py …           # where the package is not installed
    python bench/bench.py --profile-only               # where our own step's time goes

Both sides get one saved model folder, the same prompts in the same order, the same reward, fp32,
AdamW, learning rate and number of completions; `compare_trl.py` runs first and shows that loss and
gradients agree on a frozen batch. Every contender is a process of its own, and they take turns a
step at a time, so that a busy moment hits all. TRL counts with its best of threads and caches.

Rows without a signal (zero advantage) are left out by Glasshouse, exactly: they add nothing to the
gradient. That is reported apart; the headline ratio is without it, at equal work.
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
from worker import HERE, Worker
from workload import REGIMES, Work

Contender = dict[str, Any]
INLINE, SKIPPING = "glasshouse", "glasshouse, skipping"
"""In one process: nothing skipped, which is the work that TRL does, and rows without a signal left out."""


def contenders(options: argparse.Namespace) -> dict[str, Contender]:
    """Everyone who takes part, by name."""
    found: dict[str, Contender] = {
        INLINE: {"script": "ours.py", "threads": 1, "skip": False},
        SKIPPING: {"script": "ours.py", "threads": 1, "skip": True},
    }
    for generators, learners in options.placed:
        plural = "s" if generators > 1 else ""
        name = f"glasshouse, {generators} generator{plural} + {learners} learner"
        name += "s" if learners > 1 else ""
        found[name] = {
            "script": "ours.py", "threads": 1, "skip": False, "placement": "monarch", "chunk": 16,
            "blocks": learners, "monarch": {"generators": generators, "learners": learners},
        }  # fmt: skip
    for threads in options.threads:
        for cache in options.caches:
            for parts in options.micro:
                name = f"TRL, {threads} thread{'s' if threads > 1 else ''}, {cache} cache"
                name += f", {parts} micro-batches" if parts > 1 else ""
                settings = {"threads": threads, "cache": cache, "micro": parts}
                found[name] = {"script": "trl_peer.py", **settings}
    return found


def measure(work: Work, who: dict[str, Contender], options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one generation each, then rounds of one step each; the first ones warm up."""
    workers: dict[str, Worker] = {}
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {"generate": [], "step": []} for name in who
    }
    note = Console(stderr=True)
    try:
        for name, contender in who.items():
            note.print(f"[dim]{work.regime}: starting {name}")
            settings = {k: v for k, v in contender.items() if k != "script"}
            settings["work"] = asdict(work)
            workers[name] = Worker(contender["script"], settings, contender["threads"])
        for what in ("generate", "step"):
            for number in range(options.warm + options.rounds):
                note.print(f"[dim]{work.regime}: {what} {number + 1}")
                for name, worker in workers.items():
                    answer = worker.ask(what)
                    answers[name][what].append(answer)
                    full = work.problems * work.samples * work.longest
                    if not work.spec.ends and answer["tokens"] != full:
                        raise SystemExit(
                            f"{name} made {answer['tokens']} tokens where all lengths are fixed "
                            f"and {full} were due: the comparison would not be at equal work."
                        )
    finally:
        for worker in workers.values():
            worker.close()
    return {
        name: summary(answers[name], options.warm, workers[name].ready["peak_mb"]) for name in who
    }


def summary(
    answers: dict[str, list[dict[str, Any]]], warm: int, before_mb: float
) -> dict[str, Any]:
    """Medians of what came after the warm-up."""
    made, steps = answers["generate"][warm:], answers["step"][warm:]
    found: dict[str, Any] = {
        "step_seconds": middle(steps, "seconds"),
        "step_cpu_seconds": middle(steps, "cpu_seconds"),
        "step_seconds_each": [round(s["seconds"], 4) for s in steps],
        "tokens_a_step": middle(steps, "tokens"),
        "completions_a_step": steps[-1]["rows"],
        "generate_tokens_per_second": statistics.median(g["tokens"] / g["seconds"] for g in made),
        "peak_mb": steps[-1]["peak_mb"],
        "peak_mb_above_start": steps[-1]["peak_mb"] - before_mb,
    }
    if "learned_rows" in steps[-1]:
        found["learned_rows"] = middle(steps, "learned_rows")
    return found


def middle(rows: list[dict[str, Any]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def ratios(found: dict[str, Any]) -> dict[str, Any]:
    """Each of ours against the best of TRL's and transformers' settings."""
    theirs = {name: f for name, f in found.items() if name.startswith("TRL")}
    if not theirs:
        return {}
    best = min(theirs, key=lambda name: theirs[name]["step_seconds"])
    fastest = max(theirs, key=lambda name: theirs[name]["generate_tokens_per_second"])
    smallest = min(f["peak_mb"] for f in theirs.values())
    answer: dict[str, Any] = {"best_trl": best, "best_generate": fastest}
    for name, ours in found.items():
        if name in theirs:
            continue
        per_token = [f["step_seconds"] / f["tokens_a_step"] for f in (theirs[best], ours)]
        answer[name] = {
            "step": theirs[best]["step_seconds"] / ours["step_seconds"],
            "step_a_token": per_token[0] / per_token[1],
            "generate": ours["generate_tokens_per_second"]
            / theirs[fastest]["generate_tokens_per_second"],
            "memory": smallest / ours["peak_mb"],
        }
    return answer


def show(work: Work, found: dict[str, Any], against: dict[str, Any]) -> None:
    console = Console(width=max(120, Console().width))
    table = Table(
        title=f"{work.regime}: {REGIMES[work.regime].about} ({work.problems} × {work.samples}, "
        f"up to {work.longest} new tokens)",
        title_justify="left",
    )
    table.add_column("")
    heads = ("s a step", "× TRL", "CPU s", "tokens", "rows learned",
             "gen tok/s", "× generate", "peak MB", "above start")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for name, f in found.items():
        ratio = against.get(name, {})
        mark = {against.get("best_trl"): "best"}.get(name, "")
        quick = "best" if name == against.get("best_generate") else ""
        table.add_row(
            name,
            f"{f['step_seconds']:.3f}",
            f"{ratio['step']:.2f}" if ratio else mark,
            f"{f['step_cpu_seconds']:.3f}",
            f"{f['tokens_a_step']:.0f}",
            f"{f.get('learned_rows', f['completions_a_step']):.0f}",
            f"{f['generate_tokens_per_second']:,.0f}",
            f"{ratio['generate']:.2f}" if ratio else quick,
            f"{f['peak_mb']:.0f}",
            f"{f['peak_mb_above_start']:.0f}",
        )
    console.print(table)
    ours = [name for name in against if name.startswith(INLINE) and name != SKIPPING]
    if ours:
        name = min(ours, key=lambda name: found[name]["step_seconds"])
        r = against[name]
        console.print(
            f"At equal work, each at its best on this machine ({name}), a step is {r['step']:.2f} times as "
            f"fast as TRL's, generation {r['generate']:.2f} times transformers'. In one process: "
            f"{against[INLINE]['step']:.2f} times, and TRL's smallest process needs "
            f"{against[INLINE]['memory']:.2f} times the memory.\n"
        )


def show_profile(regime: str, found: dict[str, Any]) -> None:
    console = Console(width=max(100, Console().width))
    total = sum(found["places"].values())
    table = Table(
        title=f"where a step goes, {regime}, 1 thread: {found['seconds']:.3f} s",
        title_justify="left",
    )
    for head in ("", "ms", "share"):
        table.add_column(head, justify="left" if not head else "right")
    for name, seconds in found["places"].items():
        table.add_row(name, f"{1000 * seconds:.1f}", f"{seconds / total:.1%}")
    console.print(table)
    laps = ", ".join(f"{name} {1000 * s:.0f}" for name, s in found["laps"].items())
    console.print(f"the run's own laps, ms: {laps}")
    shares = ", ".join(f"{o['name']} {o['share']:.0%}" for o in found["operations"])
    console.print(f"torch operations: {shares}\n")


def profile_apart(work: Work, steps: int, skip: bool) -> dict[str, Any]:
    """In a process of its own, since it wraps functions for good."""
    code = (
        "import json, sys; from workload import Work; from where import profile; "
        "a = json.loads(sys.argv[1]); "
        "json.dump(profile(Work(**a['work']), a['steps'], a['skip']), open(a['out'], 'w'))"
    )
    out = HERE / f".profile-{os.getpid()}.json"
    settings = {"work": asdict(work), "steps": steps, "skip": skip, "out": str(out)}
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "shared")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, json.dumps(settings)]
    try:
        subprocess.run(command, env=environment, check=True)
        found: dict[str, Any] = json.loads(out.read_text())
    finally:
        out.unlink(missing_ok=True)
    return found


def losses_agree() -> bool:
    """`compare_trl.py`: the same value and gradient as TRL's, or there is nothing to compare."""
    paths = str(HERE.parent / "shared")
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, str(HERE / "compare_trl.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    print((done.stdout.strip() or done.stderr.strip()).splitlines()[-1])
    return done.returncode == 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="pocket", help="`pocket` or a model folder")
    parser.add_argument("--regime", nargs="+", default=["natural", "fixed"], choices=REGIMES)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=72)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2, help="first rounds, not counted")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2],
                        help="thread counts to try, for TRL and besides 1 for us")  # fmt: skip
    parser.add_argument("--caches", nargs="+", default=["dynamic", "static"])
    parser.add_argument("--micro", nargs="+", type=int, default=[1],
                        help="into how many micro-batches TRL divides a step")  # fmt: skip
    parser.add_argument("--placed", nargs="*", type=pair, default=[(1, 1), (2, 2)],
                        help="generator and learner processes to try, as 2+2")  # fmt: skip
    parser.add_argument("--profile-only", action="store_true")
    parser.add_argument("--skip-compare", action="store_true", help="leave compare_trl.py out")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    return parser.parse_args()


def pair(text: str) -> tuple[int, int]:
    generators, _, learners = text.partition("+")
    return int(generators), int(learners or 1)


def main() -> int:
    options = arguments()
    result: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()},
        "rounds": options.rounds,
        "regimes": {},
    }
    if not options.profile_only and not options.skip_compare:
        result["losses_agree"] = losses_agree()
        if not result["losses_agree"]:
            print("Losses or gradients differ from TRL's: run bench/compare_trl.py and mend them.")
            return 1
    for regime in options.regime:
        sizes = {k: getattr(options, k) for k in ("problems", "samples", "max_tokens")}
        work = Work(model=options.model, regime=regime, **sizes)
        entry: dict[str, Any] = {"work": asdict(work)}
        if not options.profile_only:
            found = measure(work, contenders(options), options)
            entry |= {"contenders": found, "ratios": ratios(found)}
            show(work, found, entry["ratios"])
        entry["profile"] = profile_apart(work, options.rounds, skip=False)
        show_profile(regime, entry["profile"])
        result["regimes"][regime] = entry
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
