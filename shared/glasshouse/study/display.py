"""The progress of a study in the terminal: a bar, and a line per finished run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glasshouse.measurement.registry import lookup
from glasshouse.study.spec import Study, StudyRun
from glasshouse.study.table import StudyRow
from glasshouse.terminal import shows_bars, terminal_safe


class StudyProgress:
    """Without a terminal (in a pipe) only the lines are printed; on a quiet console nothing."""

    def __init__(self, study: Study, console: Console) -> None:
        self.measure = next(iter(study.measures), "")
        self.last_steps: dict[str, int] = {}
        """Last step of each run, by its name."""
        self.progress = Progress(
            TextColumn("[bold]study"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            console=console,
            disable=console.quiet or not shows_bars(console),
            transient=True,
            speed_estimate_period=600,  # runs differ in speed: estimate over several of them
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def on_start(self, runs: Sequence[StudyRun], finished: int) -> None:
        self.total, self.finished = len(runs), finished
        if finished:
            self._print(f"[dim]{finished} of {len(runs)} runs are already finished.[/]")
        steps = sum(run.config.steps for run in runs if not run.is_finished)
        self.bar = self.progress.add_task("", total=steps, line=f"{finished}/{self.total} runs")
        self.progress.start()

    def on_step(self, run: StudyRun, step: int) -> None:
        self.last_steps[run.name] = max(step, self.last_steps.get(run.name, 0))
        self.progress.update(self.bar, completed=sum(self.last_steps.values()))

    def on_run_finished(self, run: StudyRun, seconds: float, rows: Sequence[StudyRow]) -> None:
        self.finished += 1
        self.on_step(run, run.config.steps)
        self.progress.update(self.bar, line=f"{self.finished}/{self.total} runs")
        change = _format_change(self.measure, rows) if self.measure else ""
        self._print(
            f"{self.finished:>3}/{self.total}  [bold]{escape(terminal_safe(run.arm))}[/] seed {run.seed} "
            f"[dim]({escape(terminal_safe(run.base))}, {seconds:.0f} s)[/]  {escape(change)}"
        )

    def on_warning(self, message: str) -> None:
        self._print(f"[yellow]{escape(terminal_safe(message))}[/]")

    def _print(self, line: str) -> None:
        self.progress.console.print(line, soft_wrap=True)


def _format_change(measure: str, rows: Sequence[StudyRow]) -> str:
    """`reliance 0.21 → 0.35`, from the first step that has the measure to the last; empty without it."""
    values = [row.value for row in sorted(rows) if row.measure == measure]
    ends = [
        "undefined" if value is None else f"{value:.2f}" for value in (*values[:1], *values[-1:])
    ]
    return f"{lookup(measure).label} {' → '.join(ends)}" if values else ""
