"""Studies: arms × seeds, their table, answers and figures; controls and sizes of training sets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glasshouse.study import spec
from glasshouse.study.control import run_control
from glasshouse.study.runner import StudyProgress, StudyRun, plan_runs
from glasshouse.study.runner import run_study as train_study
from glasshouse.study.spec import Study
from glasshouse.study.table import Table
from glasshouse.study.table_check import compare_tables, read_table_lines

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.study.analysis import Analysis

__all__ = [
    "Study",
    "StudyResult",
    "StudyRun",
    "compare_tables",
    "default_folder",
    "load_study",
    "plan_runs",
    "publish_study",
    "read_table_lines",
    "run_control",
    "run_study",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """The table of a study, and the answers to its questions."""

    study: Study
    path: Path
    """The folder: runs/, and results/ with table, study.json, figures and report.html."""
    table: Table
    analysis: Analysis


def load_study(
    file: str | Path,
    overrides: Sequence[str] = (),
    *,
    arms: Sequence[str] | None = None,
    seeds: int | None = None,
) -> Study:
    """Read a study file, all of it or some arms and seeds.

    Example: `load_study("training/digits.reinforce/study.yaml", ["steps=4"], seeds=2)`
    """
    return spec.load_study(Path(file), overrides).subset(arms, seeds)


def default_folder(file: str | Path) -> Path:
    """Where a study file's results go: runs/studies/<name of the study>."""
    return Path("runs") / "studies" / spec.study_name(Path(file))


def run_study(
    study: Study | str | Path,
    out: str | Path | None = None,
    *,
    jobs: int = 2,
    keep_rollouts: bool = False,
    table: str | Path | None = None,
    progress: bool = True,
    console: Console | None = None,
) -> StudyResult:
    """Train the runs that are not finished, then answer the study's questions and write table,
    figures and report. With `table`, train nothing and analyse that file.

    Example: `run_study("my-study.yaml", jobs=4).analysis.answers`
    """
    import io

    from rich.console import Console

    from glasshouse.console import make_console
    from glasshouse.models.provenance import software_versions
    from glasshouse.report.study_output import report_study
    from glasshouse.study.display import TerminalProgress

    if isinstance(study, str | Path):
        out = out or default_folder(study)
        study = load_study(study)
    folder = Path(out) if out else Path("runs") / "studies" / "study"
    console = console or (make_console() if progress else Console(file=io.StringIO()))
    if table is not None:
        rows = Table.load(Path(table)).subset(study.arms, study.seeds)
    else:
        shown = TerminalProgress(study, console) if progress else nullcontext(StudyProgress())
        with shown as callbacks:
            rows = train_study(
                study, folder, jobs=jobs, keep_rollouts=keep_rollouts, progress=callbacks
            )
    analysis = report_study(study, rows, folder / "results", software_versions(), console)
    return StudyResult(study=study, path=folder, table=rows, analysis=analysis)


def publish_study(result: StudyResult, folder: str | Path, command: str) -> None:
    """Write the compressed table, the analysis, the figures and a README to a folder."""
    from glasshouse.report import study_output

    study_output.publish_study(
        result.analysis, result.table, result.path / "results", Path(folder), command
    )
