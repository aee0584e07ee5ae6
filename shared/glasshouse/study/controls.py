"""Two studies that are defined in code: `glasshouse study control` and `glasshouse study scaling`.

control   Positive: the configuration unchanged must learn. Negative: the same with rewards shuffled among
          rollouts must not; a pipeline that learns from shuffled rewards leaks answers somewhere. The
          verdict uses Student's interval, because the exact test of a study's questions cannot show
          anything with the default five seeds.
scaling   One arm per size of a fixed training set, and one with fresh problems, for the same number of
          steps. The cost of a small set is the gap: training accuracy that held-out problems do not reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.markdown import Markdown

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.files import write_json
from glasshouse.measurement.intervals import mean_interval
from glasshouse.measurement.registry import HEADLINE_ACCURACY
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.study.contrasts import mean_over_seeds
from glasshouse.study.report import format_mean
from glasshouse.study.runner import plan_runs, train_study
from glasshouse.study.spec import study_from_config
from glasshouse.study.table import Table
from glasshouse.terminal import make_console
from glasshouse.view.html import markdown_table

MEASURES = {HEADLINE_ACCURACY: "accuracy of samples", "accuracy": "accuracy of greedy answers"}
ARMS = {"positive": {"reward.shuffle": False}, "negative": {"reward.shuffle": True}}
MIN_GAIN = 0.1
"""The positive control passes if accuracy rises by at least this much in every seed."""
LAST_STEPS = 10
"""Training accuracy is the mean over this many last steps."""
COLUMNS = {
    "held_out_sampled": "held out, sampled",
    "held_out": "held out, greedy",
    "training": "training",
    "gap": "gap",
    "seconds": "seconds",
}
"""What is reported of each size, and its column in the table."""


class Gain(NamedTuple):
    """Sampled held-out accuracy of one run before and after training."""

    seed: int
    before: float
    after: float


def run_control(
    files: Sequence[str], overrides: Sequence[str], *, seeds: int, jobs: int, out: Path
) -> bool:
    """Train the missing runs, print the verdict and write results/control.json; True if it passes."""
    study = study_from_config(
        files,
        overrides,
        title="Positive and negative control",
        arms=ARMS,
        seeds=seeds,
        measures=MEASURES,
    )
    table = train_study(study, out, jobs=jobs, console=make_console())
    gains = {arm: _gains(table, arm) for arm in ARMS}
    passed, verdict = judge_control(gains["positive"], gains["negative"])
    runs = {arm: [gain._asdict() for gain in gains[arm]] for arm in gains}
    write_json(out / "results" / "control.json", {"passed": passed, "verdict": verdict, **runs})
    make_console().print(verdict)
    return passed


def judge_control(positive: Sequence[Gain], negative: Sequence[Gain]) -> tuple[bool, str]:
    """Whether the controls pass, and why."""
    rises = [gain.after - gain.before for gain in positive]
    learns = min(rises) >= MIN_GAIN and (len(rises) == 1 or mean_interval(rises)[1] > 0)
    sentence = f"The pipeline learns: sampled accuracy rose by {_format_gains(rises)}."
    if not learns:
        sentence = (
            f"It does not learn: sampled accuracy changed by {_format_gains(rises)}. In metrics.jsonl, rule_none "
            "shows whether answers are parsed, and frac_zero_std whether rewards differ within groups."
        )
    shuffled = [gain.after - gain.before for gain in negative]
    leaks = mean_interval(shuffled)[1] > 0 or min(shuffled) > MIN_GAIN
    change = f"sampled accuracy changed by {_format_gains(shuffled)}"
    other = f"It does not learn from shuffled rewards: {change}."
    if leaks:
        other = (
            f"It learns from shuffled rewards, so answers leak: {change}. Look for answers in prompts, "
            "problems shared by training and evaluation, or a reward that is not shuffled."
        )
    return learns and not leaks, f"{sentence} {other}"


def run_scaling(
    files: Sequence[str],
    overrides: Sequence[str],
    *,
    base: int,
    factors: Sequence[float],
    seeds: int,
    jobs: int,
    out: Path,
) -> None:
    """Train the missing runs, print a table and write results/scaling.json."""
    if min(factors) <= 0 or base < 1 or seeds < 1:
        raise ConfigError("--base, --factors and --seeds must all be above 0.")
    config = load_config(files, overrides)
    if not config.evaluate.problems or not config.steps:
        raise ConfigError("Scaling compares held-out accuracy: set evaluate.problems and steps.")
    sizes = {f"{factor:g}x": max(1, round(base * factor)) for factor in sorted(set(factors))}
    arms: dict[str, dict[str, Any]] = {
        arm: {"data.source": "fixed", "data.file": "", "data.size": size}
        for arm, size in sizes.items()
    }
    arms["fresh"] = {"data.source": "fresh", "data.file": ""}
    study = study_from_config(
        files,
        overrides,
        title=f"Size of the training set for {config.task.name}",
        arms=arms,
        seeds=seeds,
        control="fresh",
        measures=MEASURES,
    )
    train_study(study, out, jobs=jobs, console=make_console())
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for run in plan_runs(study, out):
        runs[run.arm].append({"seed": run.seed, **summarize_scaling_run(run.path)})
    report: dict[str, Any] = {"task": config.task.name, "steps": config.steps, "arms": []}
    rows = []
    for arm, size in {**sizes, "fresh": None}.items():
        means = {name: mean_over_seeds([run[name] for run in runs[arm]]) for name in COLUMNS}
        summary = {name: asdict(mean) for name, mean in means.items()}
        report["arms"].append({"arm": arm, "size": size, "runs": runs[arm], **summary})
        label = f"{size:,} ({arm})" if size else arm
        rows.append((label, *(format_mean(mean) for mean in means.values())))
    write_json(out / "results" / "scaling.json", report)
    heading = f"{config.task.name}, {config.steps} steps, mean (95 % interval over seeds)"
    table = markdown_table(("training set", *COLUMNS.values()), rows)
    make_console().print(Markdown(f"{heading}\n\n{table}"))


def summarize_scaling_run(path: Path) -> dict[str, Any]:
    """The figures of one run. The gap compares training samples with held-out samples, or with
    greedy answers if evaluate.samples is 0."""
    summary = load_summary(path)
    assert summary  # the run is finished
    rows = load_metrics(path)[-LAST_STEPS:]
    training = math.fsum(row["accuracy"] for row in rows) / len(rows)
    sampled, greedy = summary["after"].get("pass_at_1"), summary["after"]["accuracy"]
    return {
        "held_out": greedy,
        "held_out_sampled": sampled,
        "training": training,
        "gap": training - (greedy if sampled is None else sampled),
        "seconds": summary["seconds"],
    }


def _gains(table: Table, arm: str) -> list[Gain]:
    gains = []
    for seed, curve in table.runs_of(arm, HEADLINE_ACCURACY).items():
        before, after = curve[min(curve)], curve[max(curve)]
        assert before is not None  # an accuracy is always defined
        assert after is not None
        gains.append(Gain(seed, before, after))
    return gains


def _format_gains(changes: Sequence[float]) -> str:
    mean, low, high = mean_interval(changes)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f}) over {len(changes)} seeds"
