"""The progress bar of `glasshouse monitor`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from glasshouse.terminal import Heartbeat, format_duration, make_console, shows_bars, terminal_safe


class MonitorProgress:
    """Receives the progress of `monitor_run` and ignores it."""

    def __enter__(self) -> MonitorProgress:
        return self

    def __exit__(self, *error: object) -> None: ...
    def start(self, names: Sequence[str], steps_each: int) -> None: ...
    def working_on(self, name: str, source: str) -> None: ...
    def finished(self, name: str, was_known: bool) -> None: ...
    def warn(self, message: str) -> None: ...


def make_progress(progress: MonitorProgress | bool, console: Console | None) -> MonitorProgress:
    if isinstance(progress, bool):
        return MonitorProgressBar(console or make_console()) if progress else MonitorProgress()
    return progress


class MonitorProgressBar(MonitorProgress):
    """Shows a bar on a terminal and, with `lines`, prints a line for each monitored model. Without a
    terminal it says what it is doing whenever nothing was printed for a while.

    Example: `monitor_run(run, progress=MonitorProgressBar(console, lines=False))`
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
            disable=not shows_bars(console),
            transient=True,
        )
        self.steps_each = 1
        self.started = time.monotonic()
        self.status = "starting"
        self.heartbeat = Heartbeat(self._print_status)

    def __enter__(self) -> MonitorProgressBar:
        self.progress.start()
        if self.progress.disable:
            self.heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop()
        self.progress.stop()

    def _print_status(self) -> None:
        duration = format_duration(time.monotonic() - self.started)
        self.console.print(
            f"[dim]monitor: {escape(self.status)}, after {duration}[/]", soft_wrap=True
        )

    def start(self, names: Sequence[str], steps_each: int) -> None:
        self.steps_each = steps_each
        self.bar = self.progress.add_task("", total=len(names) * steps_each)
        self.completed = 0

    def working_on(self, name: str, source: str) -> None:
        self.progress.update(self.bar, description=f"{escape(name)}: {escape(source)}")
        self.progress.advance(self.bar)
        self.status = terminal_safe(f"{name}: {source}")

    def finished(self, name: str, was_known: bool) -> None:
        self.completed += self.steps_each
        self.progress.update(self.bar, completed=self.completed)
        if self.lines:
            status = "measured before" if was_known else "measured"
            self.console.print(f"[dim]{escape(name):<14}{status}[/]")

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]{escape(terminal_safe(message))}[/]", soft_wrap=True)
