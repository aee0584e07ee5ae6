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
from pathlib import Path
from typing import Any, NamedTuple

from rich.markdown import Markdown

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.files import write_json
from glasshouse.measurement.closed_forms import mean_interval
from glasshouse.measurement.registry import HEADLINE_ACCURACY
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.study.contrasts import mean_over_seeds
from glasshouse.study.display import TerminalProgress
from glasshouse.study.runner import plan_runs, train_study
from glasshouse.study.spec import Study, study_from_config
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
    table = _train(study, out, jobs)
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
            f"It does not learn: sampled accuracy changed by {_format_gains(rises)}. The likeliest reason: "
            f"{_likely_reason(positive, rises)}."
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
    _train(study, out, jobs)
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for run in plan_runs(study, out):
        runs[run.arm].append({"seed": run.seed, **summarize_scaling_run(run.path)})
    summaries = [
        {"arm": arm, "size": sizes.get(arm), "runs": runs[arm], **summarize_runs(runs[arm])}
        for arm in arms
    ]
    report = {"task": config.task.name, "steps": config.steps, "base": base, "arms": summaries}
    write_json(out / "results" / "scaling.json", report)
    rows = [
        (
            f"{arm['size']:,} ({arm['arm']})" if arm["size"] else arm["arm"],
            *(_format_mean(arm[key]) for key in COLUMNS),
        )
        for arm in summaries
    ]
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
        "before": summary["before"]["accuracy"],
        "held_out": greedy,
        "held_out_sampled": sampled,
        "training": training,
        "gap": training - (greedy if sampled is None else sampled),
        "seconds": summary["seconds"],
    }


def summarize_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds with Student's 95 % interval, which a single seed does not have."""
    means = {name: mean_over_seeds([run[name] for run in runs]) for name in COLUMNS}
    return {name: {"mean": m.mean, "low": m.low, "high": m.high} for name, m in means.items()}


def _train(study: Study, out: Path, jobs: int) -> Table:
    return train_study(study, out, jobs=jobs, progress=TerminalProgress(study, make_console()))


def _gains(table: Table, arm: str) -> list[Gain]:
    gains = []
    for seed, curve in table.runs_of(arm, HEADLINE_ACCURACY).items():
        before, after = curve[min(curve)], curve[max(curve)]
        assert before is not None  # an accuracy is always defined
        assert after is not None
        gains.append(Gain(seed, before, after))
    return gains


def _likely_reason(gains: Sequence[Gain], rises: Sequence[float]) -> str:
    start = sum(gain.before for gain in gains) / len(gains)
    if start > 0.9:
        return "the model is already accurate; make the task harder"
    if start < 0.02:
        return (
            "no answer is ever correct, so there is nothing to reinforce (use easier task.options or a "
            "partial reward), or answers are not parsed (see rule_none in metrics.jsonl)"
        )
    if min(rises) < -MIN_GAIN:
        return "training collapses; lower learn.learning_rate or set learn.kl_coef"
    return (
        "too few steps, a learning rate that is too low, or groups whose rewards are all equal "
        "(frac_zero_std in metrics.jsonl)"
    )


def _format_gains(changes: Sequence[float]) -> str:
    mean, low, high = mean_interval(changes)
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f}) over {len(changes)} seeds"


def _format_mean(value: dict[str, float | None]) -> str:
    if value["mean"] is None or value["low"] is None:
        return "–" if value["mean"] is None else f"{value['mean']:.3f}"
    return f"{value['mean']:.3f} ({value['low']:.2f}–{value['high']:.2f})"
