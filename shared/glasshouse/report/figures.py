"""Figures as SVG that stands in a page: no files, no requests, colours that follow the page's.

Lines are drawn in stand-in colours, which are then exchanged for the page's CSS variables, so that
one picture fits a light and a dark page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from glasshouse.errors import RunError
from glasshouse.report.arms import Arm, Band, band
from glasshouse.report.monitor_table import measure
from glasshouse.report.run_data import Gathered

INK = "#010203"
COLOURS = ("#010204", "#010205", "#010206", "#010207", "#010208", "#010209")
VARIABLES = {INK: "currentColor"} | {c: f"var(--line-{n})" for n, c in enumerate(COLOURS)}
CURVES = (
    ("accuracy", "right, while sampling"),
    ("reward", "mean reward"),
    ("length", "completion length, tokens"),
    ("entropy", "entropy, nats a token"),
    ("kl", "KL from the start, nats a token"),
)
READABILITY = ("necessity uplift", "step validity", "early-answering AOC", "mistake-follow")


def library() -> Any:
    """matplotlib, or a sentence."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise RunError('A report needs matplotlib: pip install "glasshouse[report]".') from None
    return pyplot


def curves(arms: Sequence[Arm]) -> list[str]:
    """Accuracy (held out: dots), reward, length, entropy and KL over steps."""
    return [_curve(arms, key, title) for key, title in CURVES]


def readability(arms: Sequence[Arm]) -> list[str]:
    """The measures of readability over checkpoints; nothing where no run was monitored."""
    known = [Arm(arm.name, tuple(r for r in arm.runs if r.monitor)) for arm in arms]
    return [_readability(known, name) for name in READABILITY if any(arm.runs for arm in known)]


def histogram(first: Sequence[float], last: Sequence[float], steps: int) -> str:
    """How rewards are spread at the beginning and at the end of training."""
    figure, axis = axes(f"rewards, first and last {steps} steps")
    low, high = min(*first, *last), max(*first, *last)
    edges = [low + (high - low) * n / 20 for n in range(21)] if high > low else 20
    both = [list(first), list(last)]
    weights = [[1 / len(values)] * len(values) for values in both]
    colours, names = [COLOURS[1], COLOURS[0]], ["first", "last"]
    axis.hist(both, bins=edges, weights=weights, color=colours, label=names)
    axis.set_xlabel("reward")
    axis.set_ylabel("share of rollouts")
    axis.legend(frameon=False, fontsize=8, labelcolor=INK)
    return svg(figure, "How rewards are spread at the first and last steps")


def _curve(arms: Sequence[Arm], key: str, title: str) -> str:
    figure, axis = axes(title)
    for arm, colour in zip(arms, _colours(len(arms)), strict=True):
        found = band(arm, lambda run: [(r["step"], r[key]) for r in run.metrics if key in r])
        _line(axis, found, colour, arm.name if len(arms) > 1 else "")
        if key == "accuracy":
            held_out = band(arm, lambda run: [(e["step"], e["accuracy"]) for e in run.evaluations])
            axis.plot(held_out.steps, held_out.mean, "o", color=colour, markersize=5)
    if key == "accuracy":
        axis.set_ylim(-0.02, 1.02)
        axis.set_title("dots: held out, greedy", fontsize=8, loc="right", color=INK)
    _legend(axis, arms)
    return svg(figure, f"{title} over training steps")


def _readability(arms: Sequence[Arm], name: str) -> str:
    figure, axis = axes(name)
    for arm, colour in zip(arms, _colours(len(arms)), strict=True):
        found = band(arm, lambda run: _points(run, name))
        if not found.steps:
            continue
        if len(arm.runs) == 1:
            _bars(axis, arm.runs[0], name, colour)
        _line(axis, found, colour, arm.name if len(arms) > 1 else "", marker="o")
    axis.set_ylim(-0.04, 1.04)
    axis.set_xlabel("step of the checkpoint (0: base)")
    _legend(axis, arms)
    return svg(figure, f"{name} over checkpoints")


def _points(run: Gathered, name: str) -> list[tuple[float, float]]:
    found = []
    for entry in run.monitor["subjects"] if run.monitor else []:
        scored = measure(entry, name)
        if scored and scored["measure"]["value"] is not None:
            found.append((entry["step"], scored["measure"]["value"]))
    return found


def _bars(axis: Any, run: Gathered, name: str, colour: str) -> None:
    """Each checkpoint's own interval."""
    for entry in run.monitor["subjects"] if run.monitor else []:
        scored = measure(entry, name)
        if scored and scored["interval"]["low"] is not None:
            ends = [scored["interval"]["low"], scored["interval"]["high"]]
            axis.plot([entry["step"]] * 2, ends, color=colour, linewidth=1.2)


def _line(axis: Any, found: Band, colour: str, name: str, marker: str = "") -> None:
    shown = name.replace("$", r"\$")  # a label is no formula
    axis.plot(
        found.steps, found.mean, color=colour, linewidth=1.6, label=shown, marker=marker, ms=4
    )
    if found.low != found.high:
        axis.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.18, linewidth=0)


def _colours(count: int) -> list[str]:
    return [COLOURS[n % len(COLOURS)] for n in range(count)]


def _legend(axis: Any, arms: Sequence[Arm]) -> None:
    if len(arms) > 1 and axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=7, labelcolor=INK)


def axes(title: str) -> tuple[Any, Any]:
    figure, axis = library().subplots(figsize=(3.5, 2.3), layout="constrained")
    axis.set_title(title, fontsize=9, loc="left", color=INK)
    axis.set_xlabel("step", fontsize=8)
    for part in (axis.xaxis, axis.yaxis):
        part.label.set_color(INK)
        part.label.set_fontsize(8)
    axis.tick_params(colors=INK, labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.spines[["left", "bottom"]].set_alpha(0.4)
    return figure, axis


def svg(figure: Any, described: str) -> str:
    """The picture's own element, without the header that a file would have."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": described}):
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    library().close(figure)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'font: ([\d.]+)px [^;"]*', r"font: \1px var(--font)", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return text.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(described, quote=True)}" ', 1
    )
