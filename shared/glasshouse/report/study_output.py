"""What `glasshouse study` ends with: study.json, figures, the page, and the verdicts on the screen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from glasshouse.report import study_figures, study_markdown, study_page, study_table
from glasshouse.store.atomic_files import write_bytes, write_text
from glasshouse.study.analysis import FILE, Analysis, analyse, write
from glasshouse.study.spec import Study
from glasshouse.study.table import PACKED, Table


def present(
    study: Study, table: Table, results: Path, versions: Mapping[str, str], console: Console
) -> Analysis:
    """Analyse the table, write everything under `results`, and say it.

    Example: `present(study, table, out / "results", keeping.versions(), Console())`
    """
    analysis = analyse(study, table)
    write(analysis, results)
    study_figures.save(analysis, results / "figures")
    page = study_page.write(analysis, results, versions)
    study_table.show(analysis, console)
    console.print(f"page    {page}", markup=False, soft_wrap=True)
    return analysis


def publish(analysis: Analysis, table: Table, results: Path, folder: Path, command: str) -> None:
    """What is kept of a study when its runs are gone: small, and enough to make all of it again."""
    table.write(folder / f"table.jsonl{PACKED}")
    shown = {f"{name}.png": told for name, (told, _) in study_figures.panels(analysis).items()}
    for file in [results / FILE, *(results / "figures" / name for name in shown)]:
        write_bytes(folder / file.name, file.read_bytes())
    write_text(folder / "README.md", study_markdown.page(analysis, shown, command))
