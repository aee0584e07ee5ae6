"""What a person sees of a study: a bar with the time that is left, and a line a finished run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glasshouse.study.runner import Planned, Watcher
from glasshouse.study.spec import Study
from glasshouse.study.table import Row

SHOWN = 3
"""So many measures stand in a run's line."""


class Terminal(Watcher):
    """For people; in a pipe, only the lines.

    Example: `with Terminal(study, console) as seen: carry_out(study, out, watcher=seen)`
    """

    def __init__(self, study: Study, console: Console) -> None:
        self.study, self.console = study, console
        self.measures = list(study.measures)[:SHOWN]
        self.reached: dict[str, int] = {}
        self.progress = Progress(
            TextColumn("[bold]study"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            speed_estimate_period=600,  # runs differ: an estimate over several of them
        )

    def __enter__(self) -> Terminal:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def planned(self, runs: Sequence[Planned], finished: int) -> None:
        self.total, self.finished = len(runs), finished
        if finished:
            self.console.print(f"[dim]{finished} of {len(runs)} runs are finished already.[/]")
        steps = sum(run.config.steps for run in runs if not run.finished)
        self.bar = self.progress.add_task("", total=steps, line=self._line())

    def stepped(self, run: Planned, step: int) -> None:
        self.reached[run.name] = max(step, self.reached.get(run.name, 0))
        self.progress.update(self.bar, completed=sum(self.reached.values()))

    def done(self, run: Planned, seconds: float, rows: Sequence[Row]) -> None:
        self.finished += 1
        self.stepped(run, run.config.steps)
        self.progress.update(self.bar, line=self._line())
        told = ", ".join(change(name, rows) for name in self.measures)
        self.progress.console.print(
            f"{self.finished:>3}/{self.total}  [bold]{escape(run.arm)}[/] seed {run.seed} "
            f"[dim]({escape(run.base)}, {seconds:.0f} s)[/]  {escape(told)}",
            soft_wrap=True,
        )

    def warn(self, sentence: str) -> None:
        self.progress.console.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)

    def _line(self) -> str:
        return f"{self.finished}/{self.total} runs"


def change(measure: str, rows: Sequence[Row]) -> str:
    """`reliance 0.21 → 0.35`, from the first step that has it to the last."""
    values = [row.value for row in sorted(rows) if row.measure == measure]
    ends = ["undefined" if value is None else f"{value:.3g}" for value in (values[0], values[-1])]
    return f"{measure} {ends[0]} → {ends[1]}"
