"""`glasshouse report`: one self-contained HTML file for one or several runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from glasshouse import config as configs
from glasshouse.errors import RunError
from glasshouse.measures.registry import headline_accuracy, lookup
from glasshouse.report import figures
from glasshouse.report.arms import Arm, group_by_arm
from glasshouse.report.html import render_page
from glasshouse.report.monitor_table import (
    checkpoint_label,
    find_measure,
    format_change,
    format_estimate,
    format_number,
    sort_measures,
)
from glasshouse.report.run_data import (
    HISTOGRAM_STEPS,
    RunData,
    first_and_last_rewards,
    load_run_data,
    select_examples,
)
from glasshouse.report.run_verdict import summarize_runs
from glasshouse.store.atomic_files import check_output_file, write_text
from glasshouse.text import count_noun, format_duration, shell_command, terminal_safe

REPORT_FILE = "report.html"
Rows = list[tuple[str, ...]]


def ignore_warning(message: str) -> None:
    """The default of `write_run_report`: the page itself names the damage."""


def write_run_report(
    runs: Sequence[Path], out: Path | None = None, warn: Callable[[str], None] = ignore_warning
) -> Path:
    """Write the report of these runs atomically; returns its path. `warn` receives what is damaged."""
    if out:
        check_output_file("--out", out)
    figures.import_pyplot()
    loaded = [load_run_data(run) for run in runs]
    for run in loaded:
        for damage in run.damage:
            warn(f"{run.path}: {damage}")
    path = out or loaded[0].path / "results" / REPORT_FILE
    page = render_run_report(loaded)
    try:
        write_text(path, page)
    except OSError as error:
        hint = "" if out else " Write it elsewhere with --out FILE."
        raise RunError(f"{path} cannot be written: {error.strerror}.{hint}") from None
    return path


def render_run_report(runs: Sequence[RunData]) -> str:
    arms = group_by_arm(runs)
    first = runs[0]
    single = first if len(runs) == 1 else None
    monitor = single.monitor if single else None
    evaluations = [e for run in runs for e in run.evaluations]
    shared = set.intersection(*(set(e) for e in evaluations)) if evaluations else set()
    measure = headline_accuracy(dict.fromkeys(shared))
    level_measure, level_rows = _level_rows(single) if single else ("", [])
    return render_page(
        "run_page.html.j2",
        title=first.path.resolve().name if single else f"{len(runs)} runs",
        description=_describe(runs),
        verdict=summarize_runs(arms),
        sessions=_describe_sessions(runs),
        seed_columns=_seed_columns(lookup(measure).label),
        seed_rows=[] if single else _seed_rows(arms, measure),
        accuracy_rows=_accuracy_rows(single) if single else [],
        level_measure=level_measure,
        level_rows=level_rows,
        problems=((first.summary or {}).get("after") or {}).get("problems"),
        training_curves=figures.training_curves(arms),
        monitored=any(run.monitor for run in runs),
        monitor_command=shell_command(["glasshouse", "monitor", first.path]),
        monitorability_curves=figures.monitorability_curves(arms),
        monitor_columns=_monitor_columns(monitor) if monitor else (),
        monitor_rows=_monitor_rows(monitor, details=False) if monitor else [],
        monitor_details=_monitor_rows(monitor, details=True) if monitor else [],
        monitor_settings=_monitor_settings(monitor) if monitor else "",
        reward_histogram=_reward_histogram(single) if single else "",
        examples=select_examples(single.path) if single else [],
        versions={
            **first.state.get("versions", {}),
            "starting weights": first.state.get("start", "unknown"),
        },
        config=configs.to_yaml(first.config),
        damage=[
            f"{run.path}: {item}" if len(runs) > 1 else str(item)
            for run in runs
            for item in run.damage
        ],
    )


def _describe(runs: Sequence[RunData]) -> str:
    c = runs[0].config
    seeds = ", ".join(str(seed) for seed in sorted({run.config.seed for run in runs}))
    return (
        f"{c.task.name} ({c.task.style.value}), {c.learn.algorithm} on {c.model}, {c.steps} steps of "
        f"{c.data.groups_per_step} problems × {c.generate.group_size} completions; "
        f"seed{'s' * (len(runs) > 1)} {seeds}"
    )


def _describe_sessions(runs: Sequence[RunData]) -> dict[str, str]:
    """When the runs were trained, for how long, and by which code."""
    starts = sorted(run.sessions[0]["time"] for run in runs if run.sessions)
    seconds = [run.summary["seconds"] for run in runs if run.summary]
    commits = dict.fromkeys(
        session["commit"] for run in runs for session in run.sessions if session.get("commit")
    )
    resumed = sum(session["event"] == "resume" for run in runs for session in run.sessions)
    facts = {
        "started": " to ".join(_format_time(t) for t in dict.fromkeys((starts[0], starts[-1])))
        if starts
        else "unknown",
        "duration": format_duration(math.fsum(seconds)) if seconds else "not finished",
        "commit": ", ".join(commits) or "unknown (not trained in a git work tree)",
    }
    if len(runs) > 1:
        facts["duration"] += f" over {count_noun(len(seconds), 'finished run')}"
    if resumed:
        facts["interruptions"] = f"resumed {count_noun(resumed, 'time')}"
    return facts


def _format_time(timestamp: str) -> str:
    """`2026-11-16 15:20 UTC`"""
    return f"{timestamp[:10]} {timestamp[11:16]} UTC"


def _accuracy_rows(run: RunData) -> Rows:
    """(measure, before, after); empty if the run is not finished. Sampled accuracy is first."""
    before, after = (run.summary or {}).get("before"), (run.summary or {}).get("after")
    if not before or not after:
        return []
    rows: Rows = [
        (explain(key), _format_rate(before, key), _format_rate(after, key))
        for key in ("pass_at_1", "accuracy", "strict", "format")
        if key in before and key in after
    ]
    for key in sorted(k for k in before if re.fullmatch(r"pass_at_(?!1$)\d+", k) and k in after):
        rows.append((explain(key), f"{before[key]:.3f}", f"{after[key]:.3f}"))
    for key in ("sampled_length", "length"):
        if key in before and key in after:
            rows.append((explain(key), f"{before[key]:.1f}", f"{after[key]:.1f}"))
    return rows


def _level_rows(run: RunData) -> tuple[str, Rows]:
    """The label of the accuracy by level, and (level, problems, before, after); no rows with a single
    level."""
    before, after = (run.summary or {}).get("before"), (run.summary or {}).get("after")
    if not before or not after or len(after["levels"]) < 2:
        return "", []
    all_rates = [*before["levels"].values(), *after["levels"].values()]
    measure = headline_accuracy(dict.fromkeys(set.intersection(*map(set, all_rates))))
    return lookup(measure).label, [
        (
            level,
            f"{rates['problems']:,}",
            _format_rate(before["levels"].get(level), measure),
            _format_rate(rates, measure),
        )
        for level, rates in after["levels"].items()
    ]


def explain(measure: str) -> Markup:
    """The label of a measure, and below it the sentence that defines it."""
    spec = lookup(measure)
    text = Markup("<strong>{}</strong>").format(terminal_safe(spec.label_with_unit))
    return (
        text + Markup("<br><small>{}</small>").format(terminal_safe(spec.definition))
        if spec.definition
        else text
    )


def _seed_columns(accuracy: str) -> tuple[str, ...]:
    labels = (lookup(name).label for name in figures.MONITORABILITY_MEASURES)
    return ("arm", "seed", f"{accuracy} before", f"{accuracy} after", *labels)


def _seed_rows(arms: Sequence[Arm], measure: str) -> Rows:
    rows: Rows = []
    for arm in arms:
        for run in arm.runs:
            summary = run.summary or {}
            last = run.monitor["subjects"][-1] if run.monitor else {"measures": {}}
            rows.append(
                (
                    arm.name,
                    str(run.config.seed),
                    _format_rate(summary.get("before"), measure),
                    _format_rate(summary.get("after"), measure),
                    *(
                        format_estimate(find_measure(last, name))
                        for name in figures.MONITORABILITY_MEASURES
                    ),
                )
            )
    return rows


def _monitor_columns(results: dict[str, Any]) -> tuple[str, ...]:
    first, last = results["subjects"][0], results["subjects"][-1]
    return ("measure", checkpoint_label(first), checkpoint_label(last), "change", "null", "ceiling")


def _monitor_rows(results: dict[str, Any], *, details: bool) -> Rows:
    """The measures of the first and last checkpoint, with change, null and ceiling: the main ones, or
    those that only explain them."""
    first, last = results["subjects"][0], results["subjects"][-1]
    changes = results.get("change", {}).get("measures", {})
    rows: Rows = []
    for evaluation, measures in last["measures"].items():
        for name in sort_measures(measures):
            if lookup(name).details_only is not details:
                continue
            estimate = measures[name]
            null, ceiling = estimate.get("null"), estimate.get("ceiling")
            has_null = null and null["mean"] is not None
            rows.append(
                (
                    explain(f"{evaluation}.{name}"),
                    format_estimate(find_measure(first, name)),
                    format_estimate(estimate),
                    format_change(changes.get(name)),
                    f"{null['mean']:.2f} (p {null['p']:.4f})" if has_null else "",
                    "" if ceiling is None else format_number(ceiling),
                )
            )
    return rows


def _monitor_settings(results: dict[str, Any]) -> str:
    settings = results["settings"]
    return f"{settings['problems']} held-out problems, rollouts {settings['rollouts']}"


def _reward_histogram(run: RunData) -> str:
    first, last = first_and_last_rewards(run.path)
    return figures.reward_histogram(first, last, HISTOGRAM_STEPS) if first and last else ""


def _format_rate(scores: dict[str, Any] | None, key: str) -> str:
    """`0.950 (0.92–0.97)`"""
    if not scores or key not in scores:
        return "–"
    if f"{key}_low" not in scores:
        return f"{scores[key]:.3f}"
    return f"{scores[key]:.3f} ({scores[f'{key}_low']:.2f}–{scores[f'{key}_high']:.2f})"
