"""Studies: arms × seeds, their table, answers and figures; controls and sizes of training sets."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from glasshouse.console import make_console
from glasshouse.study import runner, spec
from glasshouse.study.control import run_control
from glasshouse.study.display import TerminalProgress
from glasshouse.study.power import describe_power
from glasshouse.study.runner import StudyProgress, StudyRun, plan_runs
from glasshouse.study.seed_reuse import check_seeds_are_fresh
from glasshouse.study.spec import Study
from glasshouse.study.table import Table
from glasshouse.study.table_check import compare_tables, read_table_lines

if TYPE_CHECKING:
    from glasshouse.study.analysis import Analysis

__all__ = [
    "Study",
    "StudyResult",
    "StudyRun",
    "check_study",
    "compare_tables",
    "default_folder",
    "describe_power",
    "freeze_study",
    "load_study",
    "load_table",
    "plan_runs",
    "publish_study",
    "read_table_lines",
    "report_study",
    "run_control",
    "run_study",
    "train_study",
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


def check_study(study: Study, file: str | Path, *, is_whole: bool, trains: bool) -> None:
    """Raise if the study's seeds are too few for its bases, or if a registered study would train seeds
    that another study has used."""
    if is_whole:
        spec.check_seeds_per_base(study)
    if study.frozen is not None and trains:
        check_seeds_are_fresh(study, Path(file))


def freeze_study(file: str | Path) -> str:
    """Register a study before its runs: write the section `frozen` into its file. Returns a sentence."""
    from glasshouse.study import freeze

    study = load_study(file)
    spec.check_seeds_per_base(study)
    check_seeds_are_fresh(study, Path(file))
    freeze.freeze_study(Path(file))
    return freeze.describe_registration(load_study(file))


def run_study(
    study: Study | str | Path,
    out: str | Path | None = None,
    *,
    jobs: int = 2,
    keep_rollouts: bool = False,
    table: str | Path | None = None,
    progress: bool = True,
) -> StudyResult:
    """Train the runs that are not finished, then answer the study's questions and write table,
    figures and report. With `table`, train nothing and analyse that file.

    Example: `run_study("my-study.yaml", jobs=4).analysis.answers`
    """
    if isinstance(study, str | Path):
        out = out or default_folder(study)
        study = load_study(study)
    folder = Path(out) if out else Path("runs") / "studies" / "study"
    console = make_console() if progress else None
    if table is not None:
        rows = load_table(study, table)
    else:
        rows = train_study(study, folder, jobs=jobs, keep_rollouts=keep_rollouts, console=console)
    return report_study(study, rows, folder, console=console)


def train_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 2,
    keep_rollouts: bool = False,
    console: Console | None = None,
) -> Table:
    """Train the runs that are not finished and write the table; a console shows the progress."""
    shown = TerminalProgress(study, console) if console else nullcontext(StudyProgress())
    with shown as callbacks:
        return runner.run_study(
            study, out, jobs=jobs, keep_rollouts=keep_rollouts, progress=callbacks
        )


def load_table(study: Study, file: str | Path) -> Table:
    """The rows of a table that belong to a study's arms and seeds."""
    return Table.load(Path(file)).subset(study.arms, study.seeds)


def report_study(
    study: Study, table: Table, out: Path, *, console: Console | None = None
) -> StudyResult:
    """Answer the study's questions from its table; write study.json, figures and report.html."""
    from glasshouse.models.provenance import software_versions  # imports torch
    from glasshouse.study import output as study_output  # imports matplotlib

    console = console or Console(file=io.StringIO())
    analysis = study_output.report_study(
        study, table, out / "results", software_versions(), console
    )
    return StudyResult(study=study, path=out, table=table, analysis=analysis)


def publish_study(result: StudyResult, folder: str | Path, command: str) -> None:
    """Write the compressed table, the analysis, the figures and a README to a folder."""
    from glasshouse.study import output as study_output

    study_output.publish_study(
        result.analysis, result.table, result.path / "results", Path(folder), command
    )
