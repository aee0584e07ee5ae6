"""The progress bar of `glasshouse monitor`."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from glasshouse.terminal import Heartbeat, format_duration, shows_bars, terminal_safe


class MonitorProgress:
    """Shows a bar on a terminal and, with `lines`, prints a line for each monitored model. Without a
    terminal it says what it is doing whenever nothing was printed for a while; without a console, nothing.

    Example: `monitor_run(run, progress=MonitorProgress(console, lines=False))`
    """

    def __init__(self, console: Console | None = None, lines: bool = True) -> None:
        self.console, self.lines = console or Console(quiet=True), lines
        self.progress = Progress(
            TextColumn("[bold]monitor"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=console is None or not shows_bars(console),
            transient=True,
        )
        self.started = time.monotonic()
        self.status = "starting"
        self.heartbeat = Heartbeat(self._print_status)

    def __enter__(self) -> MonitorProgress:
        self.progress.start()
        if self.progress.disable:
            self.heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop()
        self.progress.stop()

    def _print_status(self) -> None:
        duration = format_duration(time.monotonic() - self.started)
        text = f"[dim]monitor: {escape(self.status)}, after {duration}[/]"
        self.console.print(text, soft_wrap=True)

    def start(self, models: int, steps_each: int) -> None:
        self.steps_each, self.completed = steps_each, 0
        self.bar = self.progress.add_task("", total=models * steps_each)

    def working_on(self, name: str, source: str) -> None:
        self.progress.update(self.bar, description=f"{escape(name)}: {escape(source)}", advance=1)
        self.status = terminal_safe(f"{name}: {source}")

    def finished(self, name: str, was_known: bool) -> None:
        self.completed += self.steps_each
        self.progress.update(self.bar, completed=self.completed)
        if self.lines:
            status = "measured before" if was_known else "measured"
            self.console.print(f"[dim]{escape(name):<14}{status}[/]")

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]{escape(terminal_safe(message))}[/]", soft_wrap=True)
