"""Write and print the results of `glasshouse study`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from glasshouse.files import write_bytes, write_text
from glasshouse.study.analysis import ANALYSIS_FILE, Analysis, analyse_study, write_analysis
from glasshouse.study.figures import plan_figures, save_figures
from glasshouse.study.markdown import render_study_markdown
from glasshouse.study.page import write_study_report
from glasshouse.study.spec import Study
from glasshouse.study.table import COMPRESSED_SUFFIX, Table
from glasshouse.study.terminal_table import print_study
from glasshouse.terminal import terminal_safe


def report_study(
    study: Study, table: Table, results: Path, versions: Mapping[str, str], console: Console
) -> Analysis:
    """Analyse the table, write study.json, figures and report.html, and print the answers.

    Example: `report_study(study, table, out / "results", {"torch": "2.13"}, Console())`
    """
    analysis = analyse_study(study, table)
    write_analysis(analysis, results)
    save_figures(analysis, results / "figures")
    page = write_study_report(analysis, results, versions)
    print_study(analysis, console)
    console.print(Text(terminal_safe(f"report  {page}")), soft_wrap=True)
    return analysis


def publish_study(
    analysis: Analysis, table: Table, results: Path, folder: Path, command: str
) -> None:
    """Copy to `folder` what is worth committing: table, analysis, figures and a README."""
    table.save(folder / f"table.jsonl{COMPRESSED_SUFFIX}")
    figures = {f"{name}.png": text for name, (text, _) in plan_figures(analysis).items()}
    for file in [results / ANALYSIS_FILE, *(results / "figures" / name for name in figures)]:
        write_bytes(folder / file.name, file.read_bytes())
    write_text(folder / "README.md", render_study_markdown(analysis, figures, command))
