"""Figures with matplotlib: learning curves, and what all figures share."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError, install_command
from glasshouse.files import check_output_file, write_text
from glasshouse.measurement.registry import HEADLINE_ACCURACY, headline_accuracy
from glasshouse.runs.run_directory import load_metrics, load_summary
from glasshouse.runs.verify import name_curve_damage
from glasshouse.terminal import count_noun, terminal_safe

INK = "#010203"
NEUTRAL = "#78828c"
"""Stands for INK in a figure that is read on white and on black."""
IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
GREEN, FAINT, WARM = "#1b4d3e", "#9bb8ae", "#c2562d"


def new_figure(size: tuple[float, float], columns: int = 1, **settings: Any) -> tuple[Any, Any]:
    """A matplotlib figure and its axes: an array of them if there are several columns.

    It is made without pyplot, which would keep it, and whose backend belongs to the caller: in a notebook,
    their own plots must still be shown.
    """
    figure = _figure_class()(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns, **settings)


@cache
def _figure_class() -> type[Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(f"Figures need matplotlib: {install_command('report')}") from None

    class NotebookFigure(Figure):
        """A figure that a notebook shows also before pyplot is imported there."""

        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png")
            return out.getvalue()

    return NotebookFigure


def new_axes(title: str) -> tuple[Any, Any]:
    """A small figure and its axes in the style of the pages."""
    figure, axis = new_figure((3.5, 2.3))
    style_axes(axis, title)
    return figure, axis


def style_axes(axis: Any, title: str) -> None:
    """Title, labels and spines in the style of the pages."""
    axis.set_title(title, fontsize=9, loc="left", color=INK)
    axis.set_xlabel("step", fontsize=8)
    for part in (axis.xaxis, axis.yaxis):
        part.label.set_color(INK)
        part.label.set_fontsize(8)
    axis.tick_params(colors=INK, labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.spines[["left", "bottom"]].set_alpha(0.4)


def write_svg(figure: Any, file: Path) -> None:
    """Write a figure without a background, readable on white and on black. Its bytes are reproducible."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    write_text(file, out.getvalue().replace(INK, NEUTRAL))


def escape_mathtext(text: str) -> str:
    """Text that matplotlib does not parse as a formula, with control characters escaped."""
    lines = (terminal_safe(line) for line in text.split("\n"))
    return "\n".join(lines).replace("$", r"\$")


# --- learning curves -------------------------------------------------------------------------


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
        axis.plot([r["step"] for r in metrics[0][:shared_steps]], mean, color=GREEN, linewidth=2)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    summaries = [load_summary(run) or {"steps_done": 0} for run in paths]
    dots = [
        (step, s[when])
        for s in summaries
        for step, when in ((0, "before"), (s["steps_done"], "after"))
        if s.get(when)
    ]
    shared = set.intersection(*(set(scores) for _, scores in dots)) if dots else set()
    measure = headline_accuracy(dict.fromkeys(shared))
    for step, scores in dots:
        value = scores[measure]
        low, high = (scores.get(f"{measure}_{end}", value) for end in ("low", "high"))
        bar = [[value - low], [high - value]]
        axes[0].errorbar(step, value, bar, fmt="o", color=WARM, markersize=4, clip_on=False)
    axes[0].set_ylim(0, 1.02)
    kind = "sampled" if measure == HEADLINE_ACCURACY else "greedy"
    style_axes(axes[0], f"training samples (lines), held out, {kind} (dots)")
    style_axes(axes[1], escape_mathtext(title) or count_noun(len(runs), "run"))
    if out is not None and Path(out).suffix == ".svg":
        write_svg(figure, Path(out))
    elif out is not None:
        figure.savefig(out, dpi=130)
    return figure
