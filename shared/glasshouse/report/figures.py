"""Figures as inline SVG for the HTML pages.

Lines are drawn in placeholder colours that `to_svg` replaces by CSS variables, so that one figure
fits the light and the dark style of a page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from glasshouse.errors import RunError
from glasshouse.extras import install_command
from glasshouse.measures.registry import HEADLINE_ACCURACY, headline_accuracy, lookup
from glasshouse.report.arms import Arm, SeedBand, seed_band
from glasshouse.report.monitor_table import find_measure
from glasshouse.report.run_data import RunData

INK = "#010203"
COLOURS = tuple(f"#0102{number:02x}" for number in range(4, 14))
CSS_COLOURS = {INK: "currentColor"} | {c: f"var(--line-{n})" for n, c in enumerate(COLOURS)}
TRAINING_METRICS = (
    ("accuracy", "accuracy of training samples"),
    ("reward", "mean reward"),
    ("length", "completion length, tokens"),
    ("entropy", "entropy, nats per token"),
    ("kl", "KL from the start, nats per token"),
)
MAX_REWARD_BARS = 6
"""Up to this many distinct rewards each get a bar of their own; more are drawn as a histogram."""
MIN_LINE_POINTS = 3
"""A line through two points would suggest a trend that nobody measured: they are drawn as points."""
MONITORABILITY_MEASURES = (
    "necessity_uplift",
    "step_validity",
    "early_answering_aoc",
    "mistake_follow",
)


def import_pyplot() -> Any:
    """matplotlib.pyplot without a display."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise RunError(f"Figures need matplotlib: {install_command('report')}") from None
    return pyplot


def training_curves(arms: Sequence[Arm]) -> list[Markup]:
    """Accuracy (held-out accuracy as dots), reward, length, entropy and KL over steps."""
    return [_training_curve(arms, key, title) for key, title in TRAINING_METRICS]


def monitorability_curves(arms: Sequence[Arm]) -> list[Markup]:
    """The main monitorability measures over checkpoints; empty if no run was monitored."""
    monitored = [Arm(arm.name, tuple(r for r in arm.runs if r.monitor)) for arm in arms]
    if not any(arm.runs for arm in monitored):
        return []
    return [_monitorability_curve(monitored, measure) for measure in MONITORABILITY_MEASURES]


def reward_histogram(first: Sequence[float], last: Sequence[float], steps: int) -> Markup:
    """The distribution of rewards at the beginning and at the end of training."""
    figure, axis = new_axes(f"rewards, first and last {steps} steps")
    values = sorted({*first, *last})
    samples = {"first": (first, COLOURS[1]), "last": (last, COLOURS[0])}
    if len(values) <= MAX_REWARD_BARS:  # one pair of bars per value: no empty bins between them
        for side, (label, (rewards, colour)) in zip((-0.2, 0.2), samples.items(), strict=True):
            shares = [sum(reward == value for reward in rewards) / len(rewards) for value in values]
            positions = [index + side for index in range(len(values))]
            axis.bar(positions, shares, width=0.4, color=colour, label=label)
        axis.set_xticks(range(len(values)), [f"{value:+.3g}" for value in values])
        axis.set_xlim(-0.6, max(len(values) - 0.4, 1.6))
        axis.set_ylim(0, 1)
    else:
        bins = [values[0] + (values[-1] - values[0]) * n / 20 for n in range(21)]
        axis.hist(
            [list(rewards) for rewards, _ in samples.values()],
            bins=bins,
            weights=[[1 / len(rewards)] * len(rewards) for rewards, _ in samples.values()],
            color=[colour for _, colour in samples.values()],
            label=list(samples),
        )
    axis.set_xlabel("reward")
    axis.set_ylabel("share of rollouts")
    axis.legend(frameon=False, fontsize=8, labelcolor=INK)
    return to_svg(figure, "Distribution of rewards at the first and last steps")


def _training_curve(arms: Sequence[Arm], key: str, title: str) -> Markup:
    figure, axis = new_axes(title)
    evaluations = [e for arm in arms for run in arm.runs for e in run.evaluations]
    measure = headline_accuracy(dict.fromkeys(_shared_keys(evaluations)))
    for arm, colour in zip(arms, _colours(len(arms)), strict=True):
        band = seed_band(arm, lambda run: [(r["step"], r[key]) for r in run.metrics if key in r])
        _plot_band(axis, band, colour, arm.name if len(arms) > 1 else "")
        if key == "accuracy":
            held_out = seed_band(
                arm, lambda run: [(e["step"], e[measure]) for e in run.evaluations]
            )
            axis.plot(held_out.steps, held_out.mean, "o", color=colour, markersize=5, clip_on=False)
    if key == "accuracy":
        axis.set_ylim(-0.02, 1.02)
        title = "sampled accuracy" if measure == HEADLINE_ACCURACY else lookup(measure).label
        axis.set_title(
            f"{title}\nline: training, dots: held out", fontsize=9, loc="left", color=INK
        )
    _add_legend(axis, arms)
    return to_svg(figure, f"{title} over training steps")


def _shared_keys(rows: Sequence[dict[str, Any]]) -> set[str]:
    return set.intersection(*(set(row) for row in rows)) if rows else set()


def _monitorability_curve(arms: Sequence[Arm], measure: str) -> Markup:
    label = lookup(measure).label
    figure, axis = new_axes(label)
    for arm, colour in zip(arms, _colours(len(arms)), strict=True):
        band = seed_band(arm, lambda run: _monitor_points(run, measure))
        if not band.steps:
            continue
        if len(arm.runs) == 1:
            _plot_intervals(axis, arm.runs[0], measure, colour)
        _plot_band(axis, band, colour, arm.name if len(arms) > 1 else "", marker="o")
    axis.set_ylim(-0.04, 1.04)
    axis.set_xlabel("step of the checkpoint (0: base)")
    _add_legend(axis, arms)
    return to_svg(figure, f"{label} over checkpoints")


def _monitor_points(run: RunData, measure: str) -> list[tuple[float, float]]:
    points = []
    for subject in run.monitor["subjects"] if run.monitor else []:
        estimate = find_measure(subject, measure)
        if estimate and estimate["measure"]["value"] is not None:
            points.append((subject["step"], estimate["measure"]["value"]))
    return points


def _plot_intervals(axis: Any, run: RunData, measure: str, colour: str) -> None:
    """The interval of each checkpoint."""
    for subject in run.monitor["subjects"] if run.monitor else []:
        estimate = find_measure(subject, measure)
        if estimate and estimate["interval"]["low"] is not None:
            interval = [estimate["interval"]["low"], estimate["interval"]["high"]]
            axis.plot([subject["step"]] * 2, interval, color=colour, linewidth=1.2)


def _plot_band(axis: Any, band: SeedBand, colour: str, name: str, marker: str = "") -> None:
    label = name.replace("$", r"\$")  # not mathtext
    if len(band.steps) < MIN_LINE_POINTS:
        axis.plot(band.steps, band.mean, "o", color=colour, label=label, ms=5, clip_on=False)
        for step, low, high in zip(band.steps, band.low, band.high, strict=True):
            if low != high:
                axis.plot([step, step], [low, high], color=colour, linewidth=1.2)
        return
    axis.plot(band.steps, band.mean, color=colour, linewidth=1.6, label=label, marker=marker, ms=4)
    if band.low != band.high:
        axis.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.18, linewidth=0)


def _colours(count: int) -> list[str]:
    return [COLOURS[n % len(COLOURS)] for n in range(count)]


def _add_legend(axis: Any, arms: Sequence[Arm]) -> None:
    if len(arms) > 1 and axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=7, labelcolor=INK)


def new_axes(title: str) -> tuple[Any, Any]:
    """A small figure and its axes in the style of the pages."""
    figure, axis = import_pyplot().subplots(figsize=(3.5, 2.3), layout="constrained")
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


def to_svg(figure: Any, description: str) -> Markup:
    """The <svg> element, without the XML header and metadata of a file."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(
            out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    import_pyplot().close(figure)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'font: ([\d.]+)px [^;"]*', r"font: \1px var(--font)", text)
    for colour, variable in CSS_COLOURS.items():
        text = text.replace(colour, variable)
    label = escape(description, quote=True)
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))
