"""`glasshouse report`: one self-contained HTML file for one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glasshouse import config as configs
from glasshouse.errors import RunError
from glasshouse.measures.registry import lookup
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
from glasshouse.text import shell_command

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
    return render_page(
        "run_page.html.j2",
        title=first.path.resolve().name if single else f"{len(runs)} runs",
        description=_describe(runs),
        verdict=summarize_runs(arms),
        seed_columns=_seed_columns(),
        seed_rows=[] if single else _seed_rows(arms),
        accuracy_rows=_accuracy_rows(single) if single else [],
        problems=((first.summary or {}).get("after") or {}).get("problems"),
        training_curves=figures.training_curves(arms),
        monitored=any(run.monitor for run in runs),
        monitor_command=shell_command(["glasshouse", "monitor", first.path]),
        monitorability_curves=figures.monitorability_curves(arms),
        monitor_columns=_monitor_columns(monitor) if monitor else (),
        monitor_rows=_monitor_rows(monitor) if monitor else [],
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


def _accuracy_rows(run: RunData) -> Rows:
    """(measure, before, after); empty if the run is not finished."""
    before, after = (run.summary or {}).get("before"), (run.summary or {}).get("after")
    if not before or not after:
        return []
    rows: Rows = [
        (label, _format_rate(before, key), _format_rate(after, key))
        for label, key in (
            ("accuracy, greedy", "accuracy"),
            ("accuracy, strict parser", "strict"),
            ("format", "format"),
        )
    ]
    for key in (k for k in before if k.startswith("pass_at_") and k in after):
        label = f"pass@{key.removeprefix('pass_at_')}, sampled"
        rows.append((label, f"{before[key]:.3f}", f"{after[key]:.3f}"))
    rows.append(("length, tokens", f"{before['length']:.1f}", f"{after['length']:.1f}"))
    for level, rates in after["levels"].items():
        start = before["levels"].get(level)
        rows.append(
            (f"accuracy, {level}", _format_rate(start, "accuracy"), _format_rate(rates, "accuracy"))
        )
    return rows


def _seed_columns() -> tuple[str, ...]:
    labels = (lookup(name).label for name in figures.MONITORABILITY_MEASURES)
    return ("arm", "seed", "accuracy before", "accuracy after", *labels)


def _seed_rows(arms: Sequence[Arm]) -> Rows:
    rows: Rows = []
    for arm in arms:
        for run in arm.runs:
            summary = run.summary or {}
            last = run.monitor["subjects"][-1] if run.monitor else {"measures": {}}
            rows.append(
                (
                    arm.name,
                    str(run.config.seed),
                    _format_rate(summary.get("before"), "accuracy"),
                    _format_rate(summary.get("after"), "accuracy"),
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


def _monitor_rows(results: dict[str, Any]) -> Rows:
    """Every measure of the first and last checkpoint, with its change, null and ceiling."""
    first, last = results["subjects"][0], results["subjects"][-1]
    changes = results.get("change", {}).get("measures", {})
    rows: Rows = []
    for measures in last["measures"].values():
        for name in sort_measures(measures):
            estimate = measures[name]
            null, ceiling = estimate.get("null"), estimate.get("ceiling")
            has_null = null and null["mean"] is not None
            rows.append(
                (
                    lookup(name).label,
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
    if not scores:
        return "–"
    return f"{scores[key]:.3f} ({scores[f'{key}_low']:.2f}–{scores[f'{key}_high']:.2f})"
