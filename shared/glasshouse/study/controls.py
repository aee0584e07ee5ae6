"""Two studies that are defined in code: `glasshouse study control` and `glasshouse study scaling`.

control   Positive: the configuration unchanged must learn, more than the negative control. Negative: the same with
          rewards shuffled among rollouts must not; a pipeline that learns from shuffled rewards leaks answers.
scaling   One arm per size of a fixed training set, and one with fresh problems, for the same number of
          steps. The cost of a small set is the gap: training accuracy that held-out problems do not reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markdown import Markdown

from glasshouse.config.loading import load_config
from glasshouse.errors import ConfigError
from glasshouse.files import write_json
from glasshouse.measurement.registry import HEADLINE_ACCURACY
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.study.answers import Verdict
from glasshouse.study.contrasts import mean_over_seeds
from glasshouse.study.report import format_mean
from glasshouse.study.runner import StudyResult, plan_runs, run_study, train_study
from glasshouse.study.spec import START, study_from_config
from glasshouse.terminal import make_console
from glasshouse.view.html import markdown_table

MEASURES = {HEADLINE_ACCURACY: "accuracy of samples", "accuracy": "accuracy of greedy answers"}
CONTROLS = {"positive": {"reward.shuffle": False}, "negative": {"reward.shuffle": True}}
QUESTIONS = {
    "positive": "Does sampled accuracy rise, more than with shuffled rewards?",
    "negative": "Does it rise with shuffled rewards? It must not.",
}
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


def run_control(
    files: Sequence[str], overrides: Sequence[str], *, seeds: int, jobs: int, out: Path
) -> bool:
    """Train the missing runs, report them as any study, and print whether the pipeline passes."""
    question = {"measure": HEADLINE_ACCURACY, "against": START, "expect": "rises"}
    study = study_from_config(
        files,
        overrides,
        title="Positive and negative control",
        arms=CONTROLS,
        null_arm="negative",
        seeds=seeds,
        measures=MEASURES,
        questions=[{"ask": ask, "arm": arm, **question} for arm, ask in QUESTIONS.items()],
    )
    passed, sentence = judge_control(run_study(study, out, jobs=jobs))
    make_console().print(sentence)
    return passed


def judge_control(result: StudyResult) -> tuple[bool, str]:
    """Whether the pipeline learns, and only from its rewards; and what to look for if not."""
    positive, negative = (answer.verdict for answer in result.analysis.answers)
    if negative is Verdict.SHOWN:
        return False, (
            "Failed: it learns from shuffled rewards, so answers leak. Look for answers in prompts, problems shared "
            "by training and evaluation, or a reward that is not shuffled."
        )
    if positive is not Verdict.SHOWN:
        return False, (
            "Failed: that it learns is not shown. In metrics.jsonl, rule_none shows whether answers are parsed, "
            "and frac_zero_std whether rewards differ within groups."
        )
    return True, "Passed: it learns, and not from shuffled rewards."


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
    fixed = {"data.source": "fixed", "data.file": ""}
    study = study_from_config(
        files,
        overrides,
        title=f"Size of the training set for {config.task.name}",
        arms={arm: {**fixed, "data.size": size} for arm, size in sizes.items()}
        | {"fresh": {"data.source": "fresh", "data.file": ""}},
        seeds=seeds,
        control="fresh",
        measures=MEASURES,
    )
    train_study(study, out, jobs=jobs, console=make_console())
    report: dict[str, Any] = {"task": config.task.name, "steps": config.steps, "arms": []}
    rows = []
    for arm in study.arms:
        paths = [run.path for run in plan_runs(study, out) if run.arm == arm]
        runs = [summarize_scaling_run(path) for path in paths]
        means = {name: mean_over_seeds([run[name] for run in runs]) for name in COLUMNS}
        summary = {name: asdict(mean) for name, mean in means.items()}
        size = sizes.get(arm)
        report["arms"].append({"arm": arm, "size": size, "runs": runs, **summary})
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
        "seed": summary["seed"],
        "held_out": greedy,
        "held_out_sampled": sampled,
        "training": training,
        "gap": training - (greedy if sampled is None else sampled),
        "seconds": summary["seconds"],
    }
