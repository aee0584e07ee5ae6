"""Learning proofs over several seeds, with thresholds. `make proofs ONLY=example`, `make proofs ONLY=learning`.

    python -m proofs.learning example reinforce tasks

Each proof trains the example experiment, two runs at a time, prints one line per run with whether its
claim holds, and writes docs/measured/<proof>.json. Finished runs in runs/proofs are not repeated.
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
"""A name and its overrides."""


def example() -> bool:
    """Held-out greedy accuracy from at most 0.50 to at least 0.90 in each of 5 seeds."""
    arms = [(f"example-{seed}", [f"seed={seed}"]) for seed in range(5)]
    return run_proof(
        "example", arms, lambda s: s["before"]["accuracy"] <= 0.5 and s["after"]["accuracy"] >= 0.9
    )


def reinforce() -> bool:
    """REINFORCE gains at least 0.25 in each of 5 seeds."""
    arms = [(f"reinforce-{s}", [f"seed={s}", "learn.algorithm=reinforce"]) for s in range(5)]
    return run_proof("reinforce", arms, lambda s: accuracy_gain(s) >= 0.25)


def tasks() -> bool:
    """GRPO gains at least 0.20 on every task with style cot; style direct is only reported."""
    arms: list[Arm] = [
        (f"{task}-{style}", [f"task.name={task}", f"task.style={style}"])
        for style in ("cot", "direct")
        for task in TASKS
    ]
    return run_proof("tasks", arms, lambda s: s["style"] == "direct" or accuracy_gain(s) >= 0.2)


PROOFS: dict[str, Callable[[], bool]] = {"example": example, "reinforce": reinforce, "tasks": tasks}


def accuracy_gain(summary: dict[str, Any]) -> float:
    """The gain in sampled accuracy, which is less noisy than greedy accuracy."""
    return summary["after"]["pass_at_1"] - summary["before"]["pass_at_1"]


def run_proof(name: str, arms: list[Arm], holds: Callable[[dict[str, Any]], bool]) -> bool:
    results = []
    with ThreadPoolExecutor(2) as pool:
        for (arm, overrides), summary in zip(arms, pool.map(train_arm, arms), strict=True):
            before, after = summary["before"], summary["after"]
            arm_holds = holds(summary)
            print(
                f"{arm:<24} greedy {before['accuracy']:.3f} → {after['accuracy']:.3f}   "
                f"sampled {before['pass_at_1']:.3f} → {after['pass_at_1']:.3f}   "
                f"length {before['sampled_length']:.0f} → {after['sampled_length']:.0f}   "
                f"{summary['seconds']:.0f} s   {'holds' if arm_holds else 'DOES NOT HOLD'}",
                flush=True,
            )
            evaluations = {
                k: {m: v for m, v in summary[k].items() if m != "levels"}
                for k in ("before", "after")
            }
            results.append(
                {
                    "arm": arm,
                    "overrides": overrides,
                    "holds": arm_holds,
                    "seconds": summary["seconds"],
                    **evaluations,
                }
            )
    count = sum(r["holds"] for r in results)
    print(f"{name}: {count} of {len(results)} hold. {PROOFS[name].__doc__}")
    target = ROOT / "docs" / "measured" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"claim": PROOFS[name].__doc__, "runs": results}, indent=2) + "\n")
    return count == len(results)


def train_arm(arm: Arm) -> dict[str, Any]:
    name, overrides = arm
    out = RUNS / name
    summary = out / "results" / "summary.json"
    if not summary.exists():
        command = [sys.executable, str(SCRIPT), "--quiet", f"out={out}", *overrides]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(summary.read_text())


if __name__ == "__main__":
    names = sys.argv[1:] or list(PROOFS)
    unknown = [name for name in names if name not in PROOFS]
    if unknown:
        sys.exit(f"error: there is no proof {unknown[0]!r}; choose from {', '.join(PROOFS)}.")
    outcomes = [PROOFS[name]() for name in names]
    sys.exit(0 if all(outcomes) else 1)
