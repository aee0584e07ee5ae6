"""Draw the forecast of a pipeline: throughput over the number of generators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from glasshouse.plan.pipeline import Forecast
from glasshouse.report.figures import new_figure
from glasshouse.report.learning_curves import COOL, FAINT, IMAGE_SUFFIXES, INK, WARM
from glasshouse.store.atomic_files import check_output_file


def draw_forecast(
    curves: Mapping[str, Mapping[int, Forecast]],
    out: Path,
    measured: Mapping[str, Mapping[int, float]] | None = None,
) -> None:
    """Steps per hour of each curve by number of generators, labelled with what limits it.
    `measured`: seconds per step, drawn as dots."""
    check_output_file("--out", out, IMAGE_SUFFIXES)
    figure, axis = new_figure((6.4, 3.6))
    for (name, points), colour in zip(curves.items(), (INK, WARM, COOL), strict=False):
        numbers = list(points)
        hourly = [3600 / points[n].seconds for n in numbers]
        axis.plot(numbers, hourly, color=colour, linewidth=2, label=name)
        dots = (measured or {}).get(name, {})
        axis.plot(list(dots), [3600 / s for s in dots.values()], "o", color=colour, markersize=5)
        previous_limit, offset = "", -11
        for n, height in zip(numbers, hourly, strict=True):
            if points[n].limit != previous_limit:
                previous_limit = points[n].limit
                axis.annotate(previous_limit, (n, height), xytext=(4, offset),
                              textcoords="offset points", fontsize=8, color=colour)  # fmt: skip
                offset = -7 - offset  # below, then above: labels of neighbours do not overlap
    first = next(iter(curves.values()))
    one = 3600 / next(iter(first.values())).seconds
    axis.plot(list(first), [one * n for n in first], color=FAINT, linewidth=0.8, label="ideal")
    axis.set_xscale("log")
    axis.set_yscale("log")
    highest = max(3600 / p.seconds for points in curves.values() for p in points.values())
    axis.set_ylim(one / 1.5, highest * 2.5)
    axis.set_xlabel("generators")
    axis.set_ylabel("steps per hour")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=130)
