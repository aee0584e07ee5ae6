"""Print the answers of a study in the terminal: a table, then a paragraph per question."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glasshouse.study.analysis import Analysis, Answer
from glasshouse.study.freeze import describe_registration, list_amendments
from glasshouse.study.questions import Comparison
from glasshouse.study.sentences import format_effect, format_p_holm, format_signed
from glasshouse.study.verdict import Verdict

STYLES = {
    Verdict.SHOWN: "green",
    Verdict.OPPOSITE: "red",
    Verdict.NOT_SHOWN: "yellow",
    Verdict.UNDEFINED: "dim",
}
QUESTION_COLUMNS = (
    "question",
    "effect (95 % interval)",
    "Holm p or margin",
    "null arm (95 % interval)",
    "ceiling",
    "verdict",
)
WIDE_TERMINAL = 130
"""Terminals with fewer columns show the number of a question instead of its text."""


def print_study(analysis: Analysis, console: Console) -> None:
    console.print(describe_registration(analysis.study), markup=False, soft_wrap=True)
    for amendment in list_amendments(analysis.study):
        console.print(f"  {amendment}", markup=False, soft_wrap=True)
    console.print(question_table(analysis, console.width))
    console.print()
    for number, answer in enumerate(analysis.answers, 1):
        ask = escape(answer.comparison.question.ask)
        console.print(f"[bold]{number}. {ask}[/]", soft_wrap=True)
        console.print(answer.explanation, markup=False, soft_wrap=True)


def question_table(analysis: Analysis, width: int) -> Table:
    wide = width >= WIDE_TERMINAL
    table = Table(
        box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="bold"
    )
    table.add_column("", justify="right")
    if wide:
        table.add_column(QUESTION_COLUMNS[0])
    for name in QUESTION_COLUMNS[1:]:
        justify: Literal["left", "right"] = "left" if name == "verdict" else "right"
        table.add_column(name if wide else _fold(name), justify=justify, no_wrap=True)
    for number, answer in enumerate(analysis.answers, 1):
        ask, *numbers, verdict = question_cells(answer)
        cells = [ask, *numbers] if wide else [_fold(cell) for cell in numbers]
        style = STYLES[answer.verdict]
        table.add_row(str(number), *map(escape, cells), f"[{style}]{verdict}[/]")
    return table


def question_cells(answer: Answer) -> tuple[str, ...]:
    """The row of a question, under `QUESTION_COLUMNS`."""
    comparison = answer.comparison
    margin = comparison.question.margin
    return (
        comparison.question.ask,
        format_effect(comparison.effect),
        format_p_holm(comparison.effect) if margin is None else f"within ±{margin:g}",
        "–" if comparison.null is None else format_effect(comparison.null),
        format_ceiling(comparison),
        answer.verdict.value,
    )


def format_ceiling(comparison: Comparison) -> str:
    """The largest possible effect in the expected direction; in both for `unchanged`."""
    ceiling = comparison.max_effect
    if ceiling.rise is None or ceiling.fall is None:
        return "–"
    if comparison.question.margin is not None:
        return f"{format_signed(ceiling.fall)}, {format_signed(ceiling.rise)}"
    return format_signed(ceiling.rise if comparison.question.expect == "rises" else ceiling.fall)


def _fold(cell: str) -> str:
    """Break a cell into two lines."""
    return (
        cell.replace(" (", "\n(")
        .replace("within ", "within\n")
        .replace(", ", ",\n")
        .replace(" or ", "\nor ")
    )
