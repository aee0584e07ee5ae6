"""Problem files, contamination, and how large a fixed training set must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["audit_run", "create_problem_file", "run_scaling", "summarize_provenance"]


def create_problem_file(
    task: str,
    out: str | Path,
    *,
    options: Mapping[str, Any] | Sequence[str] = (),
    split: str = "validation",
    count: int = 1000,
    oversize: float = 1.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Write distinct problems of one split with their provenance; never overwrites a file. Returns
    the provenance.

    Example: `create_problem_file("multiplication", "val.jsonl", count=100)`
    """
    from glasshouse.config.loading import load_config
    from glasshouse.tasks.create_problem_file import create_problem_file as create
    from glasshouse.tasks.splits import Split

    if not isinstance(options, Mapping):
        options = load_config([], [f"task.options.{option}" for option in options]).task.options
    return create(task, options, Split(split), count, oversize, seed, Path(out))


def summarize_provenance(provenance: dict[str, Any], out: Path) -> str:
    """One paragraph about a problem file."""
    from glasshouse.tasks.create_problem_file import summarize_provenance as summarize

    return summarize(provenance, out)


def audit_run(run: str | Path, file: str | Path | None = None) -> Any:
    """Compare the problems of a run's evaluations, or of a file, with those it was trained on."""
    from glasshouse.measurement.held_out_filter import audit_run as audit

    return audit(Path(run), Path(file) if file else None)


def run_scaling(
    files: Sequence[str],
    overrides: Sequence[str],
    *,
    base: int,
    factors: Sequence[float],
    seeds: int,
    jobs: int,
    out: Path,
) -> dict[str, Any]:
    """Train on fixed sets of factor × base problems and on fresh ones; write scaling.json and .png."""
    from glasshouse.study.data_scaling import run_scaling as run
    from glasshouse.study.scaling_figure import draw_scaling_figure

    report = run(files, overrides, base=base, factors=factors, seeds=seeds, jobs=jobs, out=out)
    draw_scaling_figure(report, out / "results" / "scaling.png")
    return report
