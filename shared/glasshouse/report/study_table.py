"""A study's verdicts in a terminal: a table of its questions, then a sentence for each."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glasshouse.study.analysis import Analysis, Answered
from glasshouse.study.questions import Answer, Contrast
from glasshouse.study.sentences import p_value, short, signed
from glasshouse.study.verdict import Verdict

STYLES = {
    Verdict.SHOWN: "green",
    Verdict.OPPOSITE: "red",
    Verdict.NOT_SHOWN: "yellow",
    Verdict.UNDEFINED: "dim",
}
HEAD = ("question", "effect (95 % interval)", "p, Holm", "null arm", "ceiling", "verdict")


WIDE = 130
"""From so many columns on, a question's text stands in its row; below, its number alone."""


def show(analysis: Analysis, console: Console) -> None:
    console.print(table(analysis, console.width))
    console.print()
    for number, answered in enumerate(analysis.answers, 1):
        console.print(f"[bold]{number}. {escape(answered.answer.question.ask)}[/]", soft_wrap=True)
        console.print(answered.sentence, markup=False, soft_wrap=True)


def table(analysis: Analysis, width: int) -> Table:
    wide = width >= WIDE
    made = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="bold")
    made.add_column("", justify="right")
    if wide:
        made.add_column(HEAD[0])
    for name in HEAD[1:]:
        justify: Literal["left", "right"] = "left" if name == "verdict" else "right"
        made.add_column(name if wide else _folded(name), justify=justify, no_wrap=True)
    for number, answered in enumerate(analysis.answers, 1):
        ask, *told, verdict = cells(answered)
        shown = [ask, *told] if wide else [_folded(cell) for cell in told]
        style = STYLES[answered.verdict]
        made.add_row(str(number), *map(escape, shown), f"[{style}]{verdict}[/]")
    return made


def _folded(cell: str) -> str:
    """A cell on two lines."""
    return cell.replace(" (", "\n(").replace("within ", "within\n").replace(", ", ",\n")


def cells(answered: Answered) -> tuple[str, ...]:
    """A question's row, here and on the page."""
    a = answered.answer
    return (
        a.question.ask,
        short(a.effect),
        _test(a),
        _null(a.null),
        ceiling(a),
        answered.verdict.value,
    )


def ceiling(a: Answer) -> str:
    """The largest effect possible the way that was expected; both ways where none was."""
    if a.room.rise is None or a.room.fall is None:
        return "–"
    if a.question.margin is not None:
        return f"{signed(a.room.fall)}, {signed(a.room.rise)}"
    return signed(a.room.rise if a.question.expect == "rises" else a.room.fall)


def _test(a: Answer) -> str:
    """Holm's p; where a measure is to stay, the margin that its interval must lie within."""
    return p_value(a.effect) if a.question.margin is None else f"within ±{a.question.margin:g}"


def _null(c: Contrast | None) -> str:
    return "–" if c is None else short(c)
