"""The figure of `glasshouse study scaling`: accuracy and gap by size of the training set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glasshouse.view.figures import new_figure
from glasshouse.view.learning_curves import FAINT, INK, WARM


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
