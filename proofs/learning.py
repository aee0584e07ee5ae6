"""The slow proofs: many seeds, real runs, thresholds. `make demo-seeds`, `make learn-all`.

    python -m proofs.learning demo reinforce tasks

Each proof runs the example experiment two at a time, prints a line a run and whether its claim
holds, and writes docs/measured/<proof>.json. Finished runs under runs/proofs are not run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "training" / "example.rl" / "train.py"
RUNS = ROOT / "runs" / "proofs"
TASKS = ("sum_digits", "reverse_digits", "arithmetic", "multiplication", "interleave")

Arm = tuple[str, list[str]]
"""A name and the overrides that make it."""


def demo() -> bool:
    """Held-out greedy accuracy from at most 0.50 to at least 0.90 in each of 5 seeds."""
    arms = [(f"demo-{seed}", [f"seed={seed}"]) for seed in range(5)]
    return prove(
        "demo", arms, lambda s: s["before"]["accuracy"] <= 0.5 and s["after"]["accuracy"] >= 0.9
    )


def reinforce() -> bool:
    """REINFORCE gains at least 0.25 in each of 5 seeds."""
    arms = [(f"reinforce-{s}", [f"seed={s}", *REINFORCE]) for s in range(5)]
    return prove("reinforce", arms, lambda s: gain(s) >= 0.25)


def tasks() -> bool:
    """GRPO gains at least 0.20 on every task with steps; without steps it is only reported."""
    arms: list[Arm] = [
        (
            f"{task}-{style}",
            [f"task.name={task}", f"task.style={style}", *TASK_SETTINGS.get(task, [])],
        )
        for style in ("cot", "direct")
        for task in TASKS
    ]
    return prove("tasks", arms, lambda s: s["style"] == "direct" or gain(s) >= 0.2)


REINFORCE = ["learn.algorithm=reinforce"]
TASK_SETTINGS: dict[str, list[str]] = {}
PROOFS: dict[str, Callable[[], bool]] = {"demo": demo, "reinforce": reinforce, "tasks": tasks}


def gain(summary: dict[str, Any]) -> float:
    """Of sampled accuracy, which a greedy flip cannot fake."""
    return summary["after"]["pass_at_1"] - summary["before"]["pass_at_1"]


def prove(name: str, arms: list[Arm], holds: Callable[[dict[str, Any]], bool]) -> bool:
    results = []
    with ThreadPoolExecutor(2) as pool:
        for (arm, overrides), summary in zip(arms, pool.map(run, arms), strict=True):
            before, after = summary["before"], summary["after"]
            ok = holds(summary)
            print(
                f"{arm:<24} greedy {before['accuracy']:.3f} → {after['accuracy']:.3f}   "
                f"sampled {before['pass_at_1']:.3f} → {after['pass_at_1']:.3f}   "
                f"length {before['sampled_length']:.0f} → {after['sampled_length']:.0f}   "
                f"{summary['seconds']:.0f} s   {'holds' if ok else 'DOES NOT HOLD'}",
                flush=True,
            )
            kept = {
                k: {m: v for m, v in summary[k].items() if m != "levels"}
                for k in ("before", "after")
            }
            results.append(
                {
                    "arm": arm,
                    "overrides": overrides,
                    "holds": ok,
                    "seconds": summary["seconds"],
                    **kept,
                }
            )
    held = sum(r["holds"] for r in results)
    print(f"{name}: {held} of {len(results)} hold. {PROOFS[name].__doc__}")
    target = ROOT / "docs" / "measured" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"claim": PROOFS[name].__doc__, "runs": results}, indent=2) + "\n")
    return held == len(results)


def run(arm: Arm) -> dict[str, Any]:
    name, overrides = arm
    out = RUNS / name
    summary = out / "results" / "summary.json"
    if not summary.exists():
        command = [
            sys.executable,
            str(SCRIPT),
            "--quiet",
            f"out={out}",
            *overrides,
        ]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(summary.read_text())


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(PROOFS)
    unknown = [w for w in wanted if w not in PROOFS]
    if unknown:
        sys.exit(f"error: there is no proof {unknown[0]!r}; there are: {', '.join(PROOFS)}.")
    outcomes = [PROOFS[w]() for w in wanted]
    sys.exit(0 if all(outcomes) else 1)
