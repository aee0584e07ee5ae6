"""After the last training step: monitor the first and last checkpoint, and write the report.

Neither can fail a run: an error is printed, and the run stays finished.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from glasshouse.config.schema import Config
from glasshouse.terminal import shell_command, terminal_safe
from glasshouse.training.train import TrainResult

MIN_REPORT_STEPS = 10
"""Shorter runs have no curve to show; `glasshouse report` writes their report on request."""


def report_after_training(
    config: Config, result: TrainResult, console: Console | None = None
) -> None:
    """Monitor the run if monitor.at_end is set, and write results/report.html."""
    if result.outcome != "finished":
        return
    console = console or Console(highlight=False, emoji=False)
    run = result.path
    if config.monitor.at_end:
        try:
            _print_monitorability(run, console)
        except Exception as error:
            _print_failure(console, "Monitoring failed", error)
    if result.steps >= MIN_REPORT_STEPS:
        try:
            from glasshouse.view.report import write_report

            _print_line(console, f"report  {write_report(run)}")
        except Exception as error:
            _print_failure(console, "The report could not be written", error)


def _print_monitorability(run: Path, console: Console) -> None:
    from glasshouse.measurement.monitor_progress import MonitorProgressBar
    from glasshouse.measurement.monitor_run import monitor_run
    from glasshouse.view.terminal_tables import monitor_table

    bar = MonitorProgressBar(console, lines=False)
    results = monitor_run(run, first_and_last=True, progress=bar)
    console.print("\n[bold]Monitorability[/]")
    console.print(monitor_table(results))
    _print_line(console, results["verdict"])
    _print_line(console, f"more    {shell_command(['glasshouse', 'monitor', run])}")


def _print_failure(console: Console, what: str, error: Exception) -> None:
    _print_line(console, f"{what}: {str(error) or type(error).__name__}", "yellow")


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(terminal_safe(text), style), soft_wrap=True)
