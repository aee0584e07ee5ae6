"""`glasshouse figure`: accuracy and completion length of one or more runs over steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.store.atomic_files import check_output_file
from glasshouse.store.run_directory import load_metrics, load_summary

IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
INK, FAINT, WARM = "#1b4d3e", "#9bb8ae", "#c2562d"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, one row per step; raises if it has none."""
    if not (run / "results" / "metrics.jsonl").is_file():
        raise RunError(f"{run} is not a run directory: it has no results/metrics.jsonl.")
    return load_metrics(run)


def draw_learning_curves(runs: Sequence[Path], out: Path, title: str = "") -> None:
    """A thin line per run and a thick one for their mean; held-out accuracy as dots."""
    from glasshouse.report.figures import import_pyplot

    check_output_file("--out", out, IMAGE_SUFFIXES)
    pyplot = import_pyplot()
    metrics = [read_metrics(run) for run in runs]
    shared_steps = min(len(rows) for rows in metrics)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
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
    for run in runs:
        _plot_held_out(axes[0], run)
    axes[0].set_ylim(0, 1.02)
    axes[0].set_title("training samples (lines), held out, greedy (dots)", fontsize=9, loc="left")
    axes[1].set_title(title or f"{len(runs)} run{'s' * (len(runs) > 1)}", fontsize=9, loc="left")
    figure.savefig(out, dpi=130)
    pyplot.close(figure)


def _plot_held_out(axis: Any, run: Path) -> None:
    """Accuracy before and after training, with its interval."""
    summary = load_summary(run) or {"steps_done": 0}
    for step, key in ((0, "before"), (summary["steps_done"], "after")):
        if scores := summary.get(key):
            accuracy = scores["accuracy"]
            interval = [[accuracy - scores["accuracy_low"]], [scores["accuracy_high"] - accuracy]]
            axis.errorbar(step, accuracy, interval, fmt="o", color=WARM, markersize=4, capsize=2,
                          linewidth=0.8)  # fmt: skip
