"""How large should a training set be? Fixed sets of several sizes against fresh problems.

Every arm trains for the same number of steps from the same model, so that a larger set costs no
more training, only more problems. What a small set costs is the gap: training accuracy that
held-out problems do not share. Finished runs are not run again, and an interrupted one goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from glasshouse import config as configs
from glasshouse.config import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.report.learning_curves import read_metrics
from glasshouse.report.scaling_figure import draw
from glasshouse.statistics import mean_interval
from glasshouse.store import rollout_reader
from glasshouse.store.atomic_files import write_json
from glasshouse.store.run_directory import summary_of, unlike
from glasshouse.study.process_pool import Crew, Done, Job

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

    missing: dict[Job, tuple[str, int]] = {}
    for arm, seed in wanted:
        path, size = out / f"{arm}-{seed}", arms.get(arm)
        source = (
            ["data.source=fixed", "data.file=''", f"data.size={size}"]
            if size
            else ["data.source=fresh", "data.file=''"]
        )
        config = configs.load(files, [*overrides, *source, f"seed={seed}", f"out={path}"])
        summary = summary_of(path)
        if summary and "after" in summary:
            _same_configuration(config, path)
        else:
            missing[Job(name=f"The run {arm} with seed {seed}", config=config)] = arm, seed
    for arm, seed in _trained(wanted, missing, jobs):
        run = measure(out / f"{arm}-{seed}", seed)
        found[arm].append(run)
        console.print(
            f"{arm} seed {run['seed']}: held out {run['held_out']:.3f}, training "
            f"{run['training']:.3f}, {run['seconds']:.0f} s"
        )
    for runs in found.values():
        runs.sort(key=lambda run: run["seed"])
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


def _trained(
    wanted: Sequence[tuple[str, int]], missing: Mapping[Job, tuple[str, int]], jobs: int
) -> Iterator[tuple[str, int]]:
    """What is there already, then what is missing as it comes."""
    yield from (run for run in wanted if run not in missing.values())
    with Crew(jobs) as crew:
        for heard in crew.work(missing):
            if isinstance(heard, Done):
                yield missing[heard.job]


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
        "distinct_problems": len({row["key"] for row in rollout_reader.read(record, "train")}),
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


def _same_configuration(config: Config, out: Path) -> None:
    """A finished run counts only if it is the run that is asked for."""
    if differing := ", ".join(dict.fromkeys(k.split(".")[0] for k in unlike(out, config))):
        raise RunError(
            f"{out} holds a finished run with another configuration (these differ: {differing}). "
            "Choose another --out, or remove it."
        )
