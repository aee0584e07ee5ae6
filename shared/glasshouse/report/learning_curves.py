"""Learning curves of one or more runs, as a picture: accuracy and length of the thought over steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError

INK, FAINT = "#1b4d3e", "#9bb8ae"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run directory, a row a step."""
    file = run / "results" / "metrics.jsonl"
    if not file.is_file():
        raise RunError(f"{run} is not a run directory: it has no results/metrics.jsonl.")
    return [json.loads(line) for line in file.read_text().splitlines()]


def draw(runs: Sequence[Path], out: Path, title: str = "") -> None:
    """One thin line a run and a thick one for their mean; held-out accuracy as dots."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise RunError('Figures need matplotlib: pip install "glasshouse[report]".') from None
    rows = [read_metrics(run) for run in runs]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, key, label in (
        (axes[0], "accuracy", "right"),
        (axes[1], "length", "completion length, tokens"),
    ):
        for run_rows in rows:
            axis.plot(
                [r["step"] for r in run_rows],
                [r[key] for r in run_rows],
                color=FAINT,
                linewidth=0.8,
            )
        shortest = min(len(r) for r in rows)
        mean = [sum(r[i][key] for r in rows) / len(rows) for i in range(shortest)]
        axis.plot([r["step"] for r in rows[0][:shortest]], mean, color=INK, linewidth=2)
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
    for run in runs:
        summary = json.loads((run / "results" / "summary.json").read_text())
        for step, found in (
            (0, summary.get("before")),
            (summary["steps_done"], summary.get("after")),
        ):
            if found:
                axes[0].errorbar(
                    step, found["accuracy"],
                    [[found["accuracy"] - found["accuracy_low"]], [found["accuracy_high"] - found["accuracy"]]],
                    fmt="o", color="#c2562d", markersize=4, capsize=2, linewidth=0.8,
                )  # fmt: skip
    axes[0].set_ylim(0, 1.02)
    axes[0].set_title("while sampling (lines), held out and greedy (dots)", fontsize=9, loc="left")
    axes[1].set_title(title or f"{len(runs)} run{'s' * (len(runs) > 1)}", fontsize=9, loc="left")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    pyplot.close(figure)
