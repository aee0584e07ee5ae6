"""How large should a training set be? Fixed sets of several sizes against fresh problems.

Every arm trains for the same number of steps from the same model, so that a larger set costs no
more training, only more problems. What a small set costs is the gap: training accuracy that
held-out problems do not share. Each run is a process of its own; finished runs are not run again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from glasshouse import config as configs
from glasshouse.errors import ConfigError, RunError
from glasshouse.report.curves import read_metrics
from glasshouse.report.scaling import draw
from glasshouse.statistics import mean_interval
from glasshouse.store import reading
from glasshouse.store.files import write_json

FRESH = "fresh"
LAST = 10
"""Training accuracy is the mean over so many last steps."""
MEASURES = ("held_out", "held_out_sampled", "training", "gap", "seconds", "distinct_problems")


def scaling(
    files: Sequence[str],
    overrides: Sequence[str],
    base: int,
    factors: Sequence[float],
    seeds: int,
    jobs: int,
    out: Path,
) -> dict[str, Any]:
    """Run what is missing, print a table, write scaling.json and scaling.png; returns the report."""
    if min(factors) <= 0 or base < 1 or seeds < 1 or jobs < 1:
        raise ConfigError("--base, --factors, --seeds and --jobs must all be above 0.")
    resolved = configs.load(files, overrides)  # a bad configuration is one sentence
    if not resolved.evaluate.problems or not resolved.steps:
        raise ConfigError("Scaling compares held-out accuracy: set evaluate.problems and steps.")
    console = Console(highlight=False)
    arms = {f"{f:g}x": max(1, round(base * f)) for f in sorted(set(factors))}
    wanted = [(arm, seed) for seed in range(seeds) for arm in (*arms, FRESH)]
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in (*arms, FRESH)}

    def one(what: tuple[str, int]) -> tuple[str, dict[str, Any]]:
        arm, seed = what
        source = (
            ["data.source=fixed", "data.file=''", f"data.size={arms[arm]}"]
            if arm in arms
            else ["data.source=fresh", "data.file=''"]
        )
        given = [*overrides, *source, f"seed={seed}", f"out={out / f'{arm}-{seed}'}"]
        return arm, _run_one(arm, seed, files, given, out / f"{arm}-{seed}")

    with ThreadPoolExecutor(jobs) as pool:
        for arm, run in pool.map(one, wanted):
            found[arm].append(run)
            console.print(
                f"{arm} seed {run['seed']}: held out {run['held_out']:.3f}, training "
                f"{run['training']:.3f}, {run['seconds']:.0f} s"
            )
    report = {
        "task": resolved.task.name,
        "steps": resolved.steps,
        "base": base,
        "overrides": list(overrides),
        "arms": [
            {"arm": arm, "size": arms.get(arm), "runs": runs, **summarise(runs)}
            for arm, runs in found.items()
        ],
    }
    write_json(out / "scaling.json", report)
    console.print(table(report))
    draw(report, out / "scaling.png")
    console.print(f"figures {out / 'scaling.png'}   numbers {out / 'scaling.json'}")
    return report


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and 95 % t interval over seeds of each measure; a single seed has no interval."""
    summary: dict[str, Any] = {}
    for name in MEASURES:
        values = [run[name] for run in runs]
        if None in values:
            continue
        mean, low, high = mean_interval(values)
        ends = [None, None] if math.isinf(low) else [low, high]
        summary[name] = {"mean": mean, "low": ends[0], "high": ends[1]}
    return summary


def measure(out: Path, seed: int) -> dict[str, Any]:
    """One run's figures. The gap compares like with like: training samples with held-out samples,
    or with the greedy answer if no sample was taken."""
    summary: dict[str, Any] = json.loads((out / "results" / "summary.json").read_text())
    rows = read_metrics(out)[-LAST:]
    training = math.fsum(row["accuracy"] for row in rows) / len(rows)
    sampled = summary["after"].get("pass_at_1")
    greedy = summary["after"]["accuracy"]
    record = out / "results" / "rollouts"
    return {
        "seed": seed,
        "before": summary["before"]["accuracy"],
        "held_out": greedy,
        "held_out_sampled": sampled,
        "training": training,
        "gap": training - (greedy if sampled is None else sampled),
        "seconds": summary["seconds"],
        "distinct_problems": len({row["key"] for row in reading.read(record, "train")}),
    }


def table(report: dict[str, Any]) -> Table:
    """A row an arm, means with intervals."""
    shown = Table(
        title=f"{report['task']}, {report['steps']} steps, mean (95 % interval over seeds)",
        title_justify="left",
    )
    labels = ("held out, greedy", "held out, sampled", "training", "gap", "seconds", "distinct")
    for column in ("set", *labels):
        shown.add_column(column, justify="left" if column == "set" else "right")
    for arm in report["arms"]:
        name = f"{arm['size']:,} ({arm['arm']})" if arm["size"] else arm["arm"]
        cells = []
        for key in MEASURES:
            value, digits = arm.get(key), 0 if key in ("seconds", "distinct_problems") else 3
            cells.append("" if value is None else _interval(value, digits))
        shown.add_row(name, *cells)
    return shown


def _interval(value: dict[str, Any], digits: int) -> str:
    mean = f"{value['mean']:,.{digits}f}"
    if value["low"] is None or not digits:
        return mean
    return f"{mean} ({value['low']:.2f}–{value['high']:.2f})"


def _run_one(
    arm: str, seed: int, files: Sequence[str], overrides: Sequence[str], out: Path
) -> dict[str, Any]:
    if _finished(out):
        _same_configuration(files, overrides, out)
        return measure(out, seed)
    if (out / "config.yaml").exists():
        shutil.rmtree(out)  # a run cut off in the middle: it is run again from its beginning
    command = [sys.executable, "-m", "glasshouse", "train", "--quiet"]
    for file in files:
        command += ["--config", str(file)]
    done = subprocess.run(
        [*command, *overrides],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise RunError(f"The run {arm} with seed {seed} failed: {done.stderr.strip()[-800:]}")
    return measure(out, seed)


def _finished(out: Path) -> bool:
    summary = out / "results" / "summary.json"
    return summary.exists() and "after" in json.loads(summary.read_text())


def _same_configuration(files: Sequence[str], overrides: Sequence[str], out: Path) -> None:
    """A finished run counts only if it is the run that is asked for."""
    wanted = configs.load(files, overrides).model_dump(mode="json")
    there = configs.load([out / "config.yaml"]).model_dump(mode="json")
    if not wanted["task"]["options"]:  # filled in from the model's own range
        wanted["task"]["options"] = there["task"]["options"]
    if wanted != there:
        differing = ", ".join(k for k in wanted if wanted[k] != there[k])
        raise RunError(
            f"{out} holds a finished run with another configuration (these differ: {differing}). "
            "Choose another --out, or remove it."
        )
