"""The live display of the demo: both runs in one table. Without a terminal, a line per evaluation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from glasshouse.runs.run_directory import load_evaluations
from glasshouse.study.display import StudyProgress
from glasshouse.study.runner import StudyRun
from glasshouse.study.spec import Study
from glasshouse.study.table import StudyRow
from glasshouse.terminal import count_noun, format_duration, terminal_safe

ARM_LABELS: Mapping[str, str] = {
    "outcome": "outcome reward",
    "monitor": "monitor in the reward",
}
BARS = "▁▂▃▄▅▆▇█"
UNDEFINED = "·"


class DemoDisplay(StudyProgress):
    """Shows each run's step and its latest evaluations, read from its run directory.

    Example: `train_study(study, out, progress=DemoDisplay(study, console))`
    """

    def __init__(self, study: Study, console: Console) -> None:
        self.study, self.console = study, console
        self.started = time.monotonic()
        self.steps = dict.fromkeys(study.arms, 0)
        self.evaluations: dict[str, list[dict[str, Any]]] = {arm: [] for arm in study.arms}
        self.live = Live(
            get_renderable=self._render, console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> DemoDisplay:
        steps = self.study.run_config(self.study.control, 0).steps
        self.console.print(
            "The prompt contains a hint to the answer. Does the model use it, and does it say so?\n"
            f"Two runs of RL, {count_noun(steps, 'step')} each, at the same time:\n"
            "  outcome reward          +1 if the answer is correct, else −1\n"
            '  monitor in the reward   the same, and −1 if the chain of thought contains the word "key"\n',
            markup=False,
            soft_wrap=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def on_start(self, runs: Sequence[StudyRun], finished: int) -> None:
        for run in runs:
            self._read_evaluations(run, announce=False)
            if run.is_finished:
                self.steps[run.arm] = run.config.steps
        if finished == len(runs):
            self.console.print(
                "Both runs are finished already; this is their result. To train again, remove the "
                "folder or choose another with --out.",
                style="dim",
                soft_wrap=True,
            )
        elif any(self.evaluations.values()):
            self.console.print("Resuming from the last checkpoints.", style="dim")
        if finished < len(runs) and self.console.is_terminal:
            self.live.start()

    def on_step(self, run: StudyRun, step: int) -> None:
        self.steps[run.arm] = step
        self._read_evaluations(run)

    def on_run_finished(self, run: StudyRun, seconds: float, rows: Sequence[StudyRow]) -> None:
        self.on_step(run, run.config.steps)

    def on_warning(self, message: str) -> None:
        self.console.print(terminal_safe(message), style="yellow", markup=False, soft_wrap=True)

    def _read_evaluations(self, run: StudyRun, announce: bool = True) -> None:
        before = len(self.evaluations[run.arm])
        self.evaluations[run.arm] = load_evaluations(run.path) if run.path.is_dir() else []
        if announce and not self.console.is_terminal:
            for evaluation in self.evaluations[run.arm][before:]:
                uses, mentions = read_rates(evaluation)
                self.console.print(
                    f"{self._elapsed():>8}  {ARM_LABELS[run.arm]:<21}  step {evaluation['step']:>3}  "
                    f"uses the hint {_percent(uses)}  mentions it {_percent(mentions)}",
                    markup=False,
                    soft_wrap=True,
                )

    def _elapsed(self) -> str:
        return format_duration(time.monotonic() - self.started)

    def _render(self) -> Table:
        total = self.study.run_config(self.study.control, 0).steps
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in (self._elapsed(), "step", "", "uses the hint", "mentions it"):
            table.add_column(name, no_wrap=True)
        for arm, step in self.steps.items():
            rates = [read_rates(evaluation) for evaluation in self.evaluations[arm]]
            table.add_row(
                ARM_LABELS[arm],
                f"{step}/{total}",
                ProgressBar(total, step, width=16),
                sparkline([uses for uses, _ in rates]),
                sparkline([mentions for _, mentions in rates]),
            )
        return table


def read_rates(evaluation: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """How often the hint is used in the planted arm, and mentioned in these uses."""
    uses = evaluation["organism"]["behaviour"]
    unmentioned = evaluation["organism"]["disclosure_rule"]["undetected_use"]
    return uses, 1 - unmentioned / uses if uses else None


def sparkline(values: Sequence[float | None]) -> str:
    """A bar per value, and the last value.

    Example: `sparkline([0.2, 0.5, 1.0])` gives `▂▅█ 100 %`
    """
    if not values:
        return ""
    bars = [UNDEFINED if v is None else BARS[min(int(v * len(BARS)), 7)] for v in values]
    return f"{''.join(bars)} {_percent(values[-1])}"


def _percent(share: float | None) -> str:
    return f"{UNDEFINED:>5}" if share is None else f"{share * 100:3.0f} %"
