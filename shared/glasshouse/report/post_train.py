"""After the last step: how readable the chain of thought is, before and after, and the report.

Neither can fail a run: what goes wrong here is a sentence, and the run stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from glasshouse.config import Config

CURVE = 10
"""A run of fewer steps has no curve to show: `glasshouse report` writes its report if asked."""


def close(config: Config, summary: dict[str, Any], console: Console | None = None) -> None:
    """Monitor both ends if the configuration says so, and write results/report.html."""
    if "after" not in summary:  # interrupted: there is more to come
        return
    console = console or Console(highlight=False)
    run = Path(summary["run"])
    if config.monitor.at_end:
        try:
            _readable(run, console)
        except Exception as error:
            _failed(console, "Readability could not be measured", error)
    if summary["steps_done"] >= CURVE:
        try:
            from glasshouse.report.run_page import write

            console.print(f"report  {write([run])}")
        except Exception as error:
            _failed(console, "There is no report", error)


def _readable(run: Path, console: Console) -> None:
    from glasshouse.evaluation.monitor_progress import Bar
    from glasshouse.evaluation.monitor_run import monitor
    from glasshouse.report.monitor_table import small

    with Bar(console, lines=False) as bar:
        found = monitor(run, ends=True, watcher=bar)
    console.print("\n[bold]Can it be read?[/]")
    console.print(small(found))
    console.print(escape(found["verdict"]))
    console.print(f"more    glasshouse monitor {run}  (every checkpoint, every measure)")


def _failed(console: Console, what: str, error: Exception) -> None:
    console.print(f"[yellow]{what}: {escape(str(error) or type(error).__name__)}[/]")
