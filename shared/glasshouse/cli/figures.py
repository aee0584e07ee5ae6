"""Figures and pages of runs and studies."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.errors import RunError
from glasshouse.view import learning_curves

if TYPE_CHECKING:
    from glasshouse.study.api import StudyResult

__all__ = ["plot_learning_curves", "plot_study", "write_report"]


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
    target = Path(out) if out else None
    return learning_curves.plot_learning_curves([Path(run) for run in runs], title, target, warn)


def plot_study(result: StudyResult) -> dict[str, Any]:
    """The figures of a study by name, as matplotlib figures: effects, and a curve per measure."""
    from glasshouse.study.figures import LIGHT_COLOURS, plan_figures

    planned = plan_figures(result.analysis)
    return {name: draw(LIGHT_COLOURS) for name, (_, draw) in planned.items()}


def write_report(
    *runs: str | Path,
    out: str | Path | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> Path:
    """Write an HTML page about one or more runs; returns its path.

    Example: `write_report("runs/try")` writes runs/try/results/report.html.
    """
    from glasshouse.view.run_page import write_run_report

    return write_run_report([Path(run) for run in runs], Path(out) if out else None, warn=warn)
