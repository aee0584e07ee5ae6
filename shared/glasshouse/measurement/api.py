"""Measure rollouts of any trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.errors import MonitorError
from glasshouse.measurement.file import MeasureReport, measure_rollouts
from glasshouse.monitors.base import Monitor, check_monitor
from glasshouse.monitors.factory import parse_monitor
from glasshouse.monitors.fitted import FittedKind
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.views import Scope
from glasshouse.runs.foreign import FieldMapping

if TYPE_CHECKING:
    from rich.console import Console


def measure(
    rollouts: str | Path,
    map: Mapping[str, str] | Sequence[str] = (),
    *,
    monitors: Sequence[Monitor | str] | str = (),
    planted: str = "",
    control: str = "",
    steps_per_checkpoint: int = 0,
    progress: bool = True,
    console: Console | None = None,
) -> MeasureReport:
    """Measure a file or folder of rollouts: JSON lines, Parquet, a Hugging Face dataset, an Inspect log
    or a run directory. `map` says which column holds which field; the columns of TRL, verifiers and Inspect
    are recognised. `monitors` are monitors, or texts as for `glasshouse measure --monitor`; a rule for an
    empty CoT is always added.

    Example:
        report = measure("rollouts.jsonl", {"label": "hacked", "arm": "condition"},
                         monitors=["rule:hint=(?i)hint|key", "ngrams"])
        pandas.DataFrame(report.rows())
    """
    mapping = FieldMapping.parse([map] if isinstance(map, str) else map, planted, control)
    chosen: list[Monitor | FittedKind] = [
        RuleMonitor("empty_cot_rule", Scope.COT, patterns=[r"\A\s*\Z"])
    ]
    listed = [monitors] if isinstance(monitors, str) else monitors
    chosen += [parse_monitor(m) if isinstance(m, str) else _check_monitor(m) for m in listed]
    with _show_progress(console) if progress else nullcontext(lambda what, share: None) as report:
        measured = measure_rollouts(
            Path(rollouts),
            mapping,
            chosen,
            steps_per_checkpoint=steps_per_checkpoint,
            on_progress=report,
        )
    return measured


def _check_monitor(given: Monitor) -> Monitor:
    if isinstance(given, FittedKind):
        return given
    if isinstance(given, type):
        raise MonitorError(
            f"{given.__name__} is a class: give measure a monitor, {given.__name__}(…)."
        )
    check_monitor(str(given), given)
    return given


class _show_progress:
    """A bar per phase: fit, measure, estimate."""

    def __init__(self, console: Console | None) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        from glasshouse.terminal import make_console, shows_bars

        console = console or make_console(stderr=True)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not shows_bars(console),
            transient=True,
        )
        self.bars: dict[str, Any] = {}

    def __enter__(self) -> Any:
        self.progress.start()
        return self._report

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def _report(self, what: str, share: float) -> None:
        if what not in self.bars:
            self.bars[what] = self.progress.add_task(what, total=1.0)
        self.progress.update(self.bars[what], completed=share)
