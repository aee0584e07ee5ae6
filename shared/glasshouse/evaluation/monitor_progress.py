"""The progress bar of `glasshouse monitor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from glasshouse.evaluation.monitor_run import Watcher


class MonitorProgressBar(Watcher):
    """Shows a bar on a terminal and, with `lines`, prints a line for each monitored model.

    Example: `with MonitorProgressBar(console) as bar: monitor(run, watcher=bar)`
    """

    def __init__(self, console: Console, lines: bool = True) -> None:
        self.console, self.lines = console, lines
        self.progress = Progress(
            TextColumn("[bold]monitor"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.steps = 1

    def __enter__(self) -> MonitorProgressBar:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def subjects(self, names: Sequence[str], steps: int) -> None:
        self.steps = steps
        self.bar = self.progress.add_task("", total=len(names) * steps)
        self.finished = 0

    def doing(self, name: str, what: str) -> None:
        self.progress.update(self.bar, description=f"{escape(name)}: {escape(what)}")
        self.progress.advance(self.bar)

    def done(self, name: str, entry: dict[str, Any], known: bool) -> None:
        self.finished += self.steps
        self.progress.update(self.bar, completed=self.finished)
        if self.lines:
            status = "measured before" if known else "measured"
            self.console.print(f"[dim]{escape(name):<14}{status}[/]")

    def warn(self, sentence: str) -> None:
        self.console.print(f"[yellow]{escape(sentence)}[/]")
