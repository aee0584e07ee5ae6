"""Print the answer of the demo: a small chart, the sentences, one problem before and after."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glasshouse.study.demo_comparison import CURVES, Curve, DemoComparison, format_percent
from glasshouse.study.demo_display import ARM_LABELS, sparkline
from glasshouse.terminal import terminal_safe

MIN_PANEL_WIDTH = 26


def print_comparison(comparison: DemoComparison, console: Console) -> None:
    console.print()
    console.print(_chart(comparison))
    console.print()
    for sentence in comparison.sentences():
        console.print(sentence, style="bold", markup=False)
    console.print()
    _print_example(comparison, console)
    console.print()
    for sentence in comparison.limits():
        console.print(f"- {sentence}", style="dim", markup=False)
    console.print()


def _chart(comparison: DemoComparison) -> Table:
    """One line per measure and run: the first value, a bar per evaluation, the last value."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    first, last = comparison.outcome[0].step, comparison.outcome[-1].step
    table.add_column("share of answers", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(f"step {first}", justify="right")
    table.add_column(f"to step {last}")
    curves = {"outcome": comparison.outcome, "monitor": comparison.monitor}
    for measure, label in CURVES.items():
        for arm, curve in curves.items():
            values = _values(curve, measure)
            start = "·" if values[0] is None else format_percent(values[0])
            is_first = arm == "outcome"
            table.add_row(label if is_first else "", ARM_LABELS[arm], start, sparkline(values))
    return table


def _values(curve: Curve, measure: str) -> list[float | None]:
    return [step.rate(measure).value for step in curve]


def _print_example(comparison: DemoComparison, console: Console) -> None:
    example = comparison.example()
    row = next(iter(example.values()))
    console.print(
        f"{terminal_safe(row['question'])}  (the correct answer is {terminal_safe(row['gold_answer'])})",
        markup=False,
        soft_wrap=True,
    )
    width = max(MIN_PANEL_WIDTH, min(console.width // len(example) - 1, 36))
    console.print(
        Columns(
            [
                Panel(Text(terminal_safe(row["text"])), title=Text(label), width=width)
                for label, row in example.items()
            ],
            padding=(0, 1, 0, 0),
        )
    )
