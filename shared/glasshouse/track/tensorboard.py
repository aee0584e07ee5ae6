"""TensorBoard: event files in the run directory.

A resumed run writes them again from the start, since metrics.jsonl has everything that they hold.
So no step is missing or repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from glasshouse.config.loading import to_yaml
from glasshouse.terminal import shell_command
from glasshouse.track.base import LoggedSteps, RunOutcome, TrackedRun, tracker
from glasshouse.track.step_metrics import StepMetrics


@tracker("tensorboard")
class TensorBoard:
    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self.writer: Any = SummaryWriter(str(folder))
        self.url = shell_command(["tensorboard", "--logdir", run.path])
        self.writer.add_text("config", f"```yaml\n{to_yaml(run.config)}```", 0)
        return {}

    def log(self, metrics: StepMetrics) -> None:
        for name, value in metrics.values.items():
            self.writer.add_scalar(name, value, metrics.step, metrics.time)
        self.writer.flush()

    def finish(self, summary: Mapping[str, float], outcome: RunOutcome) -> None:
        rows = [f"| {name} | {value:.6g} |" for name, value in summary.items()]
        self.writer.add_text("summary", "\n".join([f"{outcome}\n", "| | |", "|---|---|", *rows]), 0)
        self.writer.close()
