"""`glasshouse study scaling`: fixed training sets of several sizes against fresh problems.

A study with one arm per size and one with fresh problems. All arms train for the same number of
steps from the same model, so a larger set costs more problems but no more training. The cost of
a small set is the gap: training accuracy that held-out problems do not reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.files import write_json
from glasshouse.measurement.closed_forms import mean_interval
from glasshouse.measurement.registry import HEADLINE_ACCURACY
from glasshouse.runs import rollout_log
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.study.display import TerminalProgress
from glasshouse.study.runner import StudyRun, plan_runs, train_study
from glasshouse.study.spec import study_from_config
from glasshouse.view.figures import new_figure
from glasshouse.view.learning_curves import FAINT, INK, WARM

FRESH = "fresh"
LAST_STEPS = 10
"""Training accuracy is the mean over this many last steps."""
COLUMNS = {
    "held_out_sampled": "held out, sampled",
    "held_out": "held out, greedy",
    "training": "training",
    "gap": "gap",
    "seconds": "seconds",
    "distinct_problems": "distinct",
}
"""What is reported of each arm, and its column in the table."""


def run_scaling(
    files: Sequence[str],
    overrides: Sequence[str],
    *,
    base: int,
    factors: Sequence[float],
    seeds: int,
    jobs: int,
    out: Path,
) -> dict[str, Any]:
    """Train the missing runs, print a table, write results/scaling.json and .png; returns the report."""
    if min(factors) <= 0 or base < 1 or seeds < 1 or jobs < 1:
        raise ConfigError("--base, --factors, --seeds and --jobs must all be above 0.")
    config = load_config(files, overrides)
    if not config.evaluate.problems or not config.steps:
        raise ConfigError("Scaling compares held-out accuracy: set evaluate.problems and steps.")
    sizes = {f"{factor:g}x": max(1, round(base * factor)) for factor in sorted(set(factors))}
    arms: dict[str, dict[str, Any]] = {
        arm: {"data.source": "fixed", "data.file": "", "data.size": size}
        for arm, size in sizes.items()
    }
    arms[FRESH] = {"data.source": "fresh", "data.file": ""}
    study = study_from_config(
        files,
        overrides,
        title=f"Size of the training set for {config.task.name}",
        arms=arms,
        seeds=seeds,
        control=FRESH,
        measures={
            HEADLINE_ACCURACY: "held-out accuracy of samples",
            "accuracy": "held-out accuracy of greedy answers",
        },
    )
    console = Console(highlight=False, emoji=False)
    progress = TerminalProgress(study, console)
    train_study(study, out, jobs=jobs, keep_rollouts=True, progress=progress)
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for run in plan_runs(study, out):
        runs[run.arm].append(summarize_scaling_run(run))
    report = {
        "task": config.task.name,
        "steps": config.steps,
        "base": base,
        "overrides": list(overrides),
        "arms": [
            {"arm": arm, "size": sizes.get(arm), "runs": runs[arm], **summarize_runs(runs[arm])}
            for arm in arms
        ],
    }
    write_json(out / "results" / "scaling.json", report)
    console.print(scaling_table(report))
    draw_scaling_figure(report, out / "results" / "scaling.png")
    return report


def summarize_scaling_run(run: StudyRun) -> dict[str, Any]:
    """The figures of one run. The gap compares training samples with held-out samples, or with
    greedy answers if evaluate.samples is 0."""
    summary = load_summary(run.path)
    assert summary  # the run is finished
    rows = load_metrics(run.path)[-LAST_STEPS:]
    training = math.fsum(row["accuracy"] for row in rows) / len(rows)
    sampled, greedy = summary["after"].get("pass_at_1"), summary["after"]["accuracy"]
    rollouts = rollout_log.read_rows(run.path, "train")
    return {
        "seed": run.seed,
        "before": summary["before"]["accuracy"],
        "held_out": greedy,
        "held_out_sampled": sampled,
        "training": training,
        "gap": training - (greedy if sampled is None else sampled),
        "seconds": summary["seconds"],
        "distinct_problems": len({row["key"] for row in rollouts}),
    }


def summarize_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds with Student's 95 % interval, which a single seed does not have."""
    summary: dict[str, Any] = {}
    for name in COLUMNS:
        values = [run[name] for run in runs]
        if None in values:
            continue
        mean, low, high = mean_interval(values)
        bounds = (None, None) if math.isinf(low) else (low, high)
        summary[name] = {"mean": mean, "low": bounds[0], "high": bounds[1]}
    return summary


def scaling_table(report: dict[str, Any]) -> Table:
    """One row per arm."""
    table = Table(
        title=f"{report['task']}, {report['steps']} steps, mean (95 % interval over seeds)",
        title_justify="left",
    )
    table.add_column("training set")
    for label in COLUMNS.values():
        table.add_column(label, justify="right")
    for arm in report["arms"]:
        name = f"{arm['size']:,} ({arm['arm']})" if arm["size"] else arm["arm"]
        table.add_row(name, *(_format_mean(arm.get(key), key) for key in COLUMNS))
    return table


def _format_mean(value: dict[str, Any] | None, key: str) -> str:
    if value is None:
        return ""
    if key in ("seconds", "distinct_problems"):
        return f"{value['mean']:,.0f}"
    if value["low"] is None:
        return f"{value['mean']:.3f}"
    return f"{value['mean']:.3f} ({value['low']:.2f}–{value['high']:.2f})"


def draw_scaling_figure(report: dict[str, Any], out: Path) -> None:
    """Held-out and training accuracy on the left, their gap on the right. Fixed sets are points;
    fresh problems are a dashed line with its interval as a band."""
    fixed = [arm for arm in report["arms"] if arm["size"]]
    fresh = [arm for arm in report["arms"] if not arm["size"]]
    sizes = [arm["size"] for arm in fixed]
    held_out = "held_out_sampled" if "held_out_sampled" in report["arms"][0] else "held_out"
    figure, axes = new_figure((9, 3.2), columns=2)
    for axis, key, label, colour in (
        (axes[0], "training", "training, last steps", FAINT),
        (axes[0], held_out, "held out", INK),
        (axes[1], "gap", "training minus held out", WARM),
    ):
        means = [arm[key]["mean"] for arm in fixed]
        errors = [[_error(arm[key], bound) for arm in fixed] for bound in ("low", "high")]
        axis.errorbar(
            sizes, means, errors, fmt="o-", color=colour, markersize=4, capsize=2, label=label
        )
        for arm in fresh:
            low, high = arm[key]["low"], arm[key]["high"]
            axis.axhline(arm[key]["mean"], color=colour, linewidth=1, linestyle="--")
            if low is not None:
                axis.axhspan(low, high, color=colour, alpha=0.12, linewidth=0)
        axis.set_xscale("log")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("problems in the fixed set")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"accuracy, {'greedy' if held_out == 'held_out' else 'sampled'}")
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].set_ylabel("training minus held out")
    axes[0].set_title("fixed sets (points), fresh problems (dashed)", fontsize=9, loc="left")
    seeds = len(report["arms"][0]["runs"])
    title = f"{report['task']}, {report['steps']} steps, {seeds} seed{'s' * (seeds > 1)}"
    axes[1].set_title(title, fontsize=9, loc="left")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


def _error(value: dict[str, Any], bound: str) -> float:
    return 0.0 if value[bound] is None else abs(value[bound] - value["mean"])
