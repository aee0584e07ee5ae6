"""The figure of `glasshouse data scaling`: accuracy and its gap against the size of the set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.report.learning_curves import FAINT, INK

WARM = "#c2562d"


def draw(report: dict[str, Any], out: Path) -> None:
    """Held-out and training accuracy on the left, their gap on the right, over the fixed sets'
    sizes; what fresh problems gave is a line across with its interval as a band."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise RunError('Figures need matplotlib: pip install "glasshouse[report]".') from None
    fixed = [arm for arm in report["arms"] if arm["size"]]
    fresh = [arm for arm in report["arms"] if not arm["size"]]
    held = "held_out_sampled" if "held_out_sampled" in report["arms"][0] else "held_out"
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, key, label, colour in (
        (axes[0], "training", "training, last steps", FAINT),
        (axes[0], held, "held out", INK),
        (axes[1], "gap", "training minus held out", WARM),
    ):
        means = [arm[key]["mean"] for arm in fixed]
        reach = [
            [_reach(arm[key], "low") for arm in fixed],
            [_reach(arm[key], "high") for arm in fixed],
        ]
        sizes = [arm["size"] for arm in fixed]
        axis.errorbar(
            sizes, means, reach, fmt="o-", color=colour, markersize=4, capsize=2, label=label
        )
        for arm in fresh:
            axis.axhline(arm[key]["mean"], color=colour, linewidth=1, linestyle="--")
            if arm[key]["low"] is not None:
                axis.axhspan(
                    arm[key]["low"], arm[key]["high"], color=colour, alpha=0.12, linewidth=0
                )
        axis.set_xscale("log")
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("problems in the fixed set")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("right, sampled" if held == "held_out_sampled" else "right, greedy")
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].set_ylabel("training minus held out")
    axes[0].set_title("fixed sets (points), fresh problems (dashed)", fontsize=9, loc="left")
    seeds = len(report["arms"][0]["runs"])
    axes[1].set_title(
        f"{report['task']}, {report['steps']} steps, {seeds} seed{'s' * (seeds > 1)}",
        fontsize=9,
        loc="left",
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    pyplot.close(figure)


def _reach(value: dict[str, Any], end: str) -> float:
    return 0.0 if value[end] is None else abs(value[end] - value["mean"])
