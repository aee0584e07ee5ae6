"""The curves of runs as one picture, drawn without a plotting library: `results/curves.svg`, written when a run ends,
and `glasshouse report figure`, which averages several runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from glasshouse.errors import RunError
from glasshouse.files import check_output_file, write_text
from glasshouse.runs.run_directory import METRICS, load_evaluations, load_metrics, load_summary
from glasshouse.terminal import count_noun

CURVES = "curves.svg"
Points = list[tuple[float, float]]
PANELS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "reward": {"training": ("reward",)},
    "accuracy": {"training": ("accuracy",), "held out, sampled": ("pass_at_1",)},
    "completion length, tokens": {"training": ("length",), "held out, greedy": ("length",)},
    "entropy, nats per token": {"training": ("entropy",)},
    "KL from the starting policy, nats": {"training": ("kl",)},
    "planted behaviour": {
        "held out": ("organism", "behaviour"),
        "disclosed": ("organism", "disclosure_rule", "disclosure"),
    },
}
"""By title: each line's label and where a row of metrics ("training"), or of evaluations, has its value."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 300, 190, 42, 34, 26
COLUMNS, MAX_POINTS = 3, 400
STYLE = """\
svg{font:11px system-ui,sans-serif;--ink:#1f2937;--line:#d1d5db;--paper:#fff;--a:#2563eb;--b:#c2410c}
@media(prefers-color-scheme:dark){svg{--ink:#e5e7eb;--line:#4b5563;--paper:#111827;--a:#60a5fa;--b:#fb923c}}
.paper{fill:var(--paper)}text{fill:var(--ink)}.grid{stroke:var(--line)}.a{--c:var(--a)}.b{--c:var(--b)}
.name{fill:var(--c)}polyline{fill:none;stroke:var(--c);stroke-width:1.5}circle{fill:var(--c)}
.each{stroke-width:.7;opacity:.35}"""


class Picture(str):
    """An SVG, which a notebook shows."""

    def _repr_svg_(self) -> str:
        return self


def plot_learning_curves(
    *runs: str | Path,
    title: str = "",
    out: str | Path | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Picture:
    """The curves of one run, or the mean of several with a thin line for each; with `out` they are also written to
    that file. `warn` receives what is damaged.

    Example: `plot_learning_curves("runs/seed-0", "runs/seed-1", out="curves.svg")`
    """
    from glasshouse.runs.verify import name_curve_damage  # it imports the log's reader

    if out is not None:
        check_output_file("--out", Path(out), (".svg",))
    if not runs:
        raise RunError("plot_learning_curves needs the path of a run.")
    for run in runs:
        if not load_metrics(Path(run)):
            raise RunError(
                f"{run}: results/{METRICS} has no steps. Give the path of a run directory."
            )
        name_curve_damage(Path(run), warn)
    panels = read_panels([Path(run) for run in runs])
    name = Path(runs[0]).resolve().name if len(runs) == 1 else count_noun(len(runs), "run")
    picture = Picture(render_panels(title or name, panels))
    if out is not None:
        write_text(Path(out), picture)
    return picture


def write_curves(run: Path) -> None:
    """Draw the run's metrics and evaluations to `results/curves.svg`; nothing if it has none yet."""
    if panels := read_panels([run]):
        write_text(run / "results" / CURVES, render_panels(run.name, panels))


def read_panels(runs: Sequence[Path]) -> dict[str, dict[str, list[Points]]]:
    """By title and label: the line of each run that has one."""
    rows = [{"training": load_metrics(run), "held out": _load_held_out(run)} for run in runs]
    panels: dict[str, dict[str, list[Points]]] = {}
    for title, lines in PANELS.items():
        for label, path in lines.items():
            kind = "training" if label == "training" else "held out"
            for own in rows:
                points = [(float(row["step"]), _look_up(row, path)) for row in own[kind]]
                if kept := [(x, y) for x, y in points if y is not None and math.isfinite(y)]:
                    panels.setdefault(title, {}).setdefault(label, []).append(kept)
    return panels


def _load_held_out(run: Path) -> list[dict[str, Any]]:
    """The evaluations; of a published run without its events, those of its summary."""
    if evaluations := load_evaluations(run):
        return evaluations
    summary = load_summary(run) or {}
    ends = {0: summary.get("before"), summary.get("steps_done", 0): summary.get("after")}
    return [{"step": step, **results} for step, results in ends.items() if results]


def _look_up(row: Any, path: Sequence[str]) -> float | None:
    for name in path:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row if isinstance(row, int | float) else None


def render_panels(title: str, panels: Mapping[str, Mapping[str, Sequence[Points]]]) -> str:
    """The picture as SVG: a panel per title, with the mean line of each label over the same steps.

    Example: `render_panels("try", {"reward": {"training": [[(1, -0.2), (2, 0.1)]]}})`
    """
    columns = min(COLUMNS, len(panels))
    width, height = columns * WIDTH, -(-len(panels) // columns) * HEIGHT + 24
    last = max(p[-1][0] for lines in panels.values() for runs in lines.values() for p in runs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<title>{escape(title)}: {escape(', '.join(panels))}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="12" y="18" font-size="13" font-weight="600">{escape(title)}</text>',
    ]
    for number, (name, lines) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        parts.append(f'<g transform="translate({column * WIDTH},{row * HEIGHT + 24})">')
        parts += [*_draw_panel(name, lines, max(1.0, last)), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _draw_panel(title: str, lines: Mapping[str, Sequence[Points]], last: float) -> list[str]:
    values = [y for runs in lines.values() for points in runs for _, y in points]
    ticks = _choose_ticks(min(values), max(values))
    right, bottom = WIDTH - 12, HEIGHT - BOTTOM

    def place(x: float, y: float) -> str:
        across = LEFT + (right - LEFT) * x / last
        return (
            f"{across:.1f},{bottom - (bottom - TOP) * (y - ticks[0]) / (ticks[-1] - ticks[0]):.1f}"
        )

    parts = [f'<text x="12" y="12" font-weight="600">{escape(title)}</text>']
    for tick in ticks:
        y = place(0, tick).partition(",")[2]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text x="{LEFT - 5}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 10}">step 0</text>')
    parts.append(f'<text x="{right}" y="{HEIGHT - 10}" text-anchor="end">{last:g}</text>')
    at = 12.0
    for (label, runs), color in zip(lines.items(), "ab", strict=False):
        *each, shown = [_average(points) for points in (*runs, _mean(runs))]
        parts.append(f'<g class="{color}">')
        for points in [*(each if len(each) > 1 else []), shown]:
            kind = "mean" if points is shown else "each"
            places = " ".join(place(*point) for point in points)
            parts.append(f'<polyline class="{kind}" points="{places}"/>')
        if len(shown) < 20:
            centres = [place(*point).split(",") for point in shown]
            parts += [f'<circle cx="{x}" cy="{y}" r="2.5"/>' for x, y in centres]
        parts.append(f'<text class="name" x="{at:g}" y="26">{escape(label)}</text></g>')
        at += 7 * len(label) + 14
    return parts


def _mean(runs: Sequence[Points]) -> Points:
    """The mean of the runs at the steps that all of them have."""
    tables = [dict(points) for points in runs]
    steps = sorted(set.intersection(*map(set, tables)))
    return [(step, fmean(table[step] for table in tables)) for step in steps]


def _average(points: Points) -> Points:
    """At most MAX_POINTS points: means of neighbours."""
    size = -(-len(points) // MAX_POINTS)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in chunk), fmean(y for _, y in chunk)) for chunk in chunks]


def _choose_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose the range.

    Example: `_choose_ticks(-0.3, 0.9)` gives -0.5, 0, 0.5 and 1
    """
    span = next((size for size in (high - low, abs(high)) if size > 1e-9), 1.0)
    power = 10 ** math.floor(math.log10(span / 3))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 4)
    first, end = math.floor(low / step), math.ceil(high / step)
    return [round(n * step, 12) for n in range(first, max(end, first + 1) + 1)]
