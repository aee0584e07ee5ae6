"""Run a study, answer its questions, and write and print the results."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import indent

from rich.console import Console
from rich.text import Text

from glasshouse.console import make_console
from glasshouse.files import write_bytes, write_text
from glasshouse.study.analysis import ANALYSIS_FILE, Analysis, analyse_study, write_analysis
from glasshouse.study.display import TerminalProgress
from glasshouse.study.figures import plan_figures, render_svg_figures, save_figures
from glasshouse.study.render import print_study, render_study
from glasshouse.study.runner import train_study
from glasshouse.study.spec import Study, dump_study, load_study, study_name
from glasshouse.study.table import COMPRESSED_SUFFIX, Table
from glasshouse.terminal import terminal_safe
from glasshouse.view.html import render_markdown_page

REPORT_FILE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """The table of a study, and the answers to its questions."""

    study: Study
    path: Path
    """The folder: runs/, and results/ with table, study.json, figures and report.html."""
    table: Table
    analysis: Analysis


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
        rows = Table.load(Path(table)).subset(study.arms, study.seeds)
    else:
        shown = TerminalProgress(study, console) if console else None
        rows = train_study(study, folder, jobs=jobs, keep_rollouts=keep_rollouts, progress=shown)
    return report_study(study, rows, folder, console)


def default_folder(file: str | Path) -> Path:
    """Where a study file's results go: runs/studies/<name of the study>."""
    return Path("runs") / "studies" / study_name(Path(file))


def report_study(
    study: Study, table: Table, out: Path, console: Console | None = None
) -> StudyResult:
    """Answer the study's questions from its table; write study.json, figures and report.html, and print
    the answers."""
    results = out / "results"
    analysis = analyse_study(study, table)
    write_analysis(analysis, results)
    save_figures(analysis, results / "figures")
    write_text(results / REPORT_FILE, render_report(analysis))
    if console:
        print_study(analysis, console)
        report = terminal_safe(f"report  {results / REPORT_FILE}")
        console.print(Text(report), soft_wrap=True)
    return StudyResult(study=study, path=out, table=table, analysis=analysis)


def render_report(analysis: Analysis) -> str:
    """The page as one self-contained HTML file, with the study file and the versions to repeat it."""
    names = ("glasshouse", "torch", "transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    page = render_study(analysis, {n: text for n, (text, _) in plan_figures(analysis).items()})
    text = f"""{page}
## How to reproduce

Save the study below as study.yaml and run `glasshouse study study.yaml --out again --check table.jsonl`. With
Python {platform.python_version()}, {versions} on the same kind of CPU, table.jsonl is identical byte for
byte, and everything on this page follows from it.

{indent(terminal_safe(dump_study(analysis.study)), "    ")}
"""
    return render_markdown_page(analysis.study.title, text, render_svg_figures(analysis))


def publish_study(result: StudyResult, folder: Path, command: str) -> None:
    """Copy to `folder` what is worth committing: table, analysis, figures and a README."""
    results = result.path / "results"
    result.table.save(folder / f"table.jsonl{COMPRESSED_SUFFIX}")
    figures = {f"{n}.png": text for n, (text, _) in plan_figures(result.analysis).items()}
    for file in [results / ANALYSIS_FILE, *(results / "figures" / name for name in figures)]:
        write_bytes(folder / file.name, file.read_bytes())
    write_text(folder / "README.md", render_study(result.analysis, figures, command))
