"""`results/curves.svg`: a run's curves as one picture, drawn without a plotting library and written when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from glasshouse.files import write_text
from glasshouse.runs.run_directory import load_evaluations, load_metrics

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
.name{fill:var(--c)}polyline{fill:none;stroke:var(--c);stroke-width:1.5}circle{fill:var(--c)}"""


def write_curves(run: Path) -> None:
    """Draw the run's metrics and evaluations to `results/curves.svg`; nothing if it has none yet."""
    rows = {"training": load_metrics(run), "held out": load_evaluations(run)}
    panels = {title: _read_lines(lines, rows) for title, lines in PANELS.items()}
    if panels := {title: lines for title, lines in panels.items() if lines}:
        write_text(run / "results" / CURVES, render_panels(run.name, panels))


def _read_lines(
    lines: Mapping[str, Sequence[str]], rows: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Points]:
    found = {}
    for label, path in lines.items():
        kind = "training" if label == "training" else "held out"
        points = [(float(row["step"]), _look_up(row, path)) for row in rows[kind]]
        if kept := [(x, y) for x, y in points if y is not None and math.isfinite(y)]:
            found[label] = kept
    return found


def _look_up(row: Any, path: Sequence[str]) -> float | None:
    for name in path:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row if isinstance(row, int | float) else None


def render_panels(title: str, panels: Mapping[str, Mapping[str, Points]]) -> str:
    """The picture as SVG: a panel per title, with a line per label over the same steps.

    Example: `render_panels("try", {"reward": {"training": [(1, -0.2), (2, 0.1)]}})`
    """
    columns = min(COLUMNS, len(panels))
    width, height = columns * WIDTH, -(-len(panels) // columns) * HEIGHT + 24
    last = max(x for lines in panels.values() for points in lines.values() for x, _ in points)
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


def _draw_panel(title: str, lines: Mapping[str, Points], last: float) -> list[str]:
    values = [y for points in lines.values() for _, y in points]
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
    for (label, points), color in zip(lines.items(), "ab", strict=False):
        shown = _average(points)
        parts.append(
            f'<g class="{color}"><polyline points="{" ".join(place(*p) for p in shown)}"/>'
        )
        if len(shown) < 20:
            centres = [place(*point).split(",") for point in shown]
            parts += [f'<circle cx="{x}" cy="{y}" r="2.5"/>' for x, y in centres]
        parts.append(f'<text class="name" x="{at:g}" y="26">{escape(label)}</text></g>')
        at += 7 * len(label) + 14
    return parts


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
