"""The picture and the HTML page of the demo."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glasshouse.files import write_bytes, write_text
from glasshouse.study.demo_comparison import CURVES, LABELS, Curve, DemoComparison
from glasshouse.study.demo_display import ARM_LABELS
from glasshouse.study.figures import LIGHT_COLOURS
from glasshouse.study.spec import Study, dump_study
from glasshouse.view import figures
from glasshouse.view.html import render_page

MARKERS = "os"


def write_page(comparison: DemoComparison, study: Study, out: Path) -> tuple[Path, Path]:
    """Write demo.html and demo.png to `out`; return both paths."""
    page, picture = out / "demo.html", out / "demo.png"
    image = io.BytesIO()
    figure = draw_curves(comparison, LIGHT_COLOURS)
    figure.savefig(image, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    write_bytes(picture, image.getvalue())
    write_text(page, render_demo_page(comparison, study))
    return page, picture


def render_demo_page(comparison: DemoComparison, study: Study) -> str:
    example = comparison.example()
    row = next(iter(example.values()))
    ends = {
        "before training": comparison.outcome[0],
        ARM_LABELS["outcome"]: comparison.outcome[-1],
        ARM_LABELS["monitor"]: comparison.monitor[-1],
    }
    return render_page(
        "demo_page.html.j2",
        title=study.title,
        about=study.about,
        sentences=comparison.sentences(),
        figure=figures.to_svg(
            draw_curves(comparison, figures.COLOURS),
            "Use of the hint, its mention and its unmentioned use over training, for both rewards",
        ),
        columns=("", *ends),
        rows=[(label, *(str(e.rate(m)) for e in ends.values())) for m, label in LABELS.items()],
        question=row["question"],
        gold=row["gold_answer"],
        example={label: row["text"] for label, row in example.items()},
        limits=comparison.limits(),
        study_yaml=dump_study(study),
    )


def draw_curves(comparison: DemoComparison, colours: Sequence[str]) -> Any:
    """One panel per measure, one line per reward, with bands of the 95 % intervals over problems."""
    figure, axes = figures.new_figure((9.6, 2.9), columns=len(CURVES), sharey=True)
    curves = {"outcome": comparison.outcome, "monitor": comparison.monitor}
    for axis, (measure, label) in zip(axes, CURVES.items(), strict=True):
        for (arm, curve), colour, marker in zip(curves.items(), colours, MARKERS, strict=False):
            _plot(axis, curve, measure, colour, marker, ARM_LABELS[arm])
        figures.style_axes(axis, label)
        axis.set_ylim(-0.03, 1.03)
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes[0].legend(frameon=False, fontsize=8, labelcolor=figures.INK, loc="lower right")
    return figure


def _plot(axis: Any, curve: Curve, measure: str, colour: str, marker: str, label: str) -> None:
    """Undefined points leave a gap."""
    steps, rates = [step.step for step in curve], [step.rate(measure) for step in curve]
    middle, low, high = (
        [float("nan") if v is None else v for v in values]
        for values in zip(*((r.value, r.low, r.high) for r in rates), strict=True)
    )
    axis.plot(steps, middle, color=colour, linewidth=1.8, marker=marker, ms=3.5, label=label)
    axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
