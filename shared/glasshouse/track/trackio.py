"""Trackio: a local database for `trackio show`; no account, no network.

TRACKIO_SPACE_ID or TRACKIO_SERVER_URL send the metrics to a server, TRACKIO_PROJECT names the project.
"""

from __future__ import annotations

import contextvars
import io
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from glasshouse.errors import TrackError
from glasshouse.terminal import shell_command
from glasshouse.track.base import DEFAULT_PROJECT, LoggedSteps, RunOutcome, TrackedRun, tracker
from glasshouse.track.step_metrics import METRIC_KINDS, MetricKind, StepMetrics


@tracker("trackio")
class Trackio:
    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        import trackio

        self.project = os.environ.get("TRACKIO_PROJECT", DEFAULT_PROJECT)
        # In a separate context, because Trackio allows one current run per context.
        context = contextvars.copy_context()
        with redirect_stdout(io.StringIO()):  # init prints
            self.run: Any = context.run(
                trackio.init,
                project=self.project,
                name=f"{run.name}-{run.id[:6]}",  # Trackio identifies runs by name
                config=run.config.model_dump(mode="json"),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.url = shell_command(["trackio", "show", "--project", self.project])
        self.sent = self._read_last_steps()
        return dict(self.sent)

    def log(self, metrics: StepMetrics) -> None:
        self.run.log(metrics.values, step=metrics.step)
        self.sent[metrics.kind] = metrics.step

    def finish(self, summary: Mapping[str, float], outcome: RunOutcome) -> None:
        """Trackio has no summary. It also hides its errors, so this compares what was saved."""
        self.run.finish()
        if self.run._is_local and self._read_last_steps() != self.sent:
            raise TrackError("not every step was saved in its database")

    def _read_last_steps(self) -> dict[MetricKind, int]:
        """Read the last step of each kind from a local database; from a server, the last step."""
        if not self.run._is_local:
            return dict.fromkeys(METRIC_KINDS, self.run._next_step - 1)
        from trackio.sqlite_storage import SQLiteStorage

        logs = SQLiteStorage.get_logs(self.project, run_id=self.run.id)
        steps = {
            kind: [row["step"] for row in logs if f"{kind}/step" in row] for kind in METRIC_KINDS
        }
        return {kind: max(values) for kind, values in steps.items() if values}
