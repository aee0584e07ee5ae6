"""`glasshouse report figure`: accuracy and completion length of one or more runs over steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.files import check_output_file
from glasshouse.measurement.registry import HEADLINE_ACCURACY, headline_accuracy
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.runs.verify import name_curve_damage

IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
INK, FAINT, WARM = "#1b4d3e", "#9bb8ae", "#c2562d"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, one row per step; raises if it has none."""
    if not (run / "results" / "metrics.jsonl").is_file():
        raise RunError(f"{run} is not a run directory: it has no results/metrics.jsonl.")
    return load_metrics(run)


def plot_learning_curves(
    *runs: str | Path,
    title: str = "",
    out: str | Path | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Any:
    """Accuracy and completion length over steps: a thin line per run, a thick one for their mean,
    held-out accuracy as dots. Returns a matplotlib figure, which a notebook shows; with `out`, it is
    also written to that file. `warn` receives what is damaged.

    Example: `plot_learning_curves("runs/seed-0", "runs/seed-1", out="curves.png")`
    """
    from glasshouse.view.figures import escape_mathtext, new_figure

    if not runs:
        raise RunError("plot_learning_curves needs the path of a run.")
    if out is not None:
        check_output_file("--out", Path(out), IMAGE_SUFFIXES)
    paths = [Path(run) for run in runs]
    metrics = [read_metrics(path) for path in paths]
    for run in paths:
        name_curve_damage(run, warn)
    shared_steps = min(len(rows) for rows in metrics)
    figure, axes = new_figure((9, 3.2), columns=2)
    for axis, key, label in (
        (axes[0], "accuracy", "accuracy"),
        (axes[1], "length", "completion length, tokens"),
    ):
        for rows in metrics:
            steps = [row["step"] for row in rows]
            axis.plot(steps, [row[key] for row in rows], color=FAINT, linewidth=0.8)
        mean = [sum(rows[i][key] for rows in metrics) / len(metrics) for i in range(shared_steps)]
        axis.plot([r["step"] for r in metrics[0][:shared_steps]], mean, color=INK, linewidth=2)
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    summaries = [load_summary(run) or {"steps_done": 0} for run in paths]
    scores = [s[when] for s in summaries for when in ("before", "after") if s.get(when)]
    shared = set.intersection(*(set(s) for s in scores)) if scores else set()
    measure = headline_accuracy(dict.fromkeys(shared))
    for summary in summaries:
        _plot_validation(axes[0], summary, measure)
    axes[0].set_ylim(0, 1.02)
    kind = "sampled" if measure == HEADLINE_ACCURACY else "greedy"
    axes[0].set_title(f"training samples (lines), held out, {kind} (dots)", fontsize=9, loc="left")
    axes[1].set_title(
        escape_mathtext(title) or f"{len(runs)} run{'s' * (len(runs) > 1)}", fontsize=9, loc="left"
    )
    if out is not None:
        figure.savefig(out, dpi=130)
    return figure


def _plot_validation(axis: Any, summary: dict[str, Any], measure: str) -> None:
    """Accuracy before and after training, with its interval if it has one."""
    for step, key in ((0, "before"), (summary["steps_done"], "after")):
        if scores := summary.get(key):
            value = scores[measure]
            low, high = (scores.get(f"{measure}_{end}", value) for end in ("low", "high"))
            axis.errorbar(
                step, value, [[value - low], [high - value]], fmt="o", color=WARM, markersize=4,
                capsize=2, linewidth=0.8, clip_on=False, zorder=3,
            )  # fmt: skip
