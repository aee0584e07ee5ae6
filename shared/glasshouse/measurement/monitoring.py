"""Measure how monitorable the chain of thought is, at every checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.monitors.base import Monitor


def monitor_run(
    run: str | Path,
    *,
    problems: int | None = None,
    greedy: bool = False,
    first_and_last: bool = False,
    monitors: Sequence[Monitor] = (),
    out: str | Path | None = None,
    progress: bool = True,
    console: Console | None = None,
) -> dict[str, Any]:
    """Evaluate the base model and every valid checkpoint of a run on held-out problems: monitors,
    and interventions on the same rollouts. Returns what it writes to results/monitor.json; finished
    checkpoints are not measured again. `first_and_last`: the base model and the last checkpoint.

    Example: `monitor_run("runs/try", first_and_last=True)["verdict"]`
    """
    from glasshouse.measurement.monitor_progress import MonitorProgressBar
    from glasshouse.measurement.monitor_run import MonitorProgress
    from glasshouse.measurement.monitor_run import monitor_run as measure_checkpoints
    from glasshouse.terminal import make_console

    run, target = Path(run), Path(out) if out else None

    def measure(callbacks: MonitorProgress) -> dict[str, Any]:
        return measure_checkpoints(
            run, problems=problems, greedy=greedy, monitors=monitors, first_and_last=first_and_last,
            progress=callbacks, out=target,
        )  # fmt: skip

    if not progress:
        return measure(MonitorProgress())
    with MonitorProgressBar(console or make_console()) as bar:
        return measure(bar)
