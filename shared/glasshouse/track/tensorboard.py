"""TensorBoard: event files in the run directory.

They hold nothing that metrics.jsonl does not, so a run that goes on writes them anew: no step is
there twice, and none that a kill took away is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from glasshouse.config import dump
from glasshouse.track.base import Ending, Held, Subject
from glasshouse.track.records import Record


class TensorBoard:
    look = ""

    def start(self, run: Subject) -> Held:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self.writer: Any = SummaryWriter(str(folder))
        self.look = f"tensorboard --logdir {run.path}"
        self.writer.add_text("config", f"```yaml\n{dump(run.config)}```", 0)
        return {}

    def log(self, record: Record) -> None:
        for name, value in record.numbers.items():
            self.writer.add_scalar(name, value, record.step, record.time)
        self.writer.flush()

    def end(self, numbers: Mapping[str, float], how: Ending) -> None:
        rows = [f"| {name} | {value:.6g} |" for name, value in numbers.items()]
        self.writer.add_text("summary", "\n".join([f"{how}\n", "| | |", "|---|---|", *rows]), 0)
        self.writer.close()
