"""MLflow: the server named by MLFLOW_TRACKING_URI, or a SQLite file next to the run directory.

A tag with the run's id identifies the MLflow run, so no MLflow id has to be stored.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from glasshouse.config.loading import flatten
from glasshouse.terminal import shell_command
from glasshouse.track.base import DEFAULT_PROJECT, LoggedSteps, RunOutcome, TrackedRun, tracker
from glasshouse.track.step_metrics import METRIC_KINDS, MetricKind, StepMetrics

ID_TAG = "glasshouse_id"
STATUS: dict[RunOutcome, str] = {
    "finished": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
MAX_PARAMETERS = 100
"""MLflow's limit per call."""
MAX_PARAMETER_LENGTH = 6000
"""MLflow's limit in characters."""


@tracker("mlflow")
class MLflow:
    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it logs each table it creates
        file = run.path.resolve().parent / "mlflow.db"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{file}"
        self.url = (
            shell_command(["mlflow", "ui", "--backend-store-uri", uri])
            if uri.endswith(str(file))
            else uri
        )
        with open(file.with_name(".mlflow.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # runs that start together must not both create tables
            self.client: Any = MlflowClient(tracking_uri=uri)
            project = os.environ.get("MLFLOW_EXPERIMENT_NAME", DEFAULT_PROJECT)
            experiment = self.client.get_experiment_by_name(project)
            experiment_id = (
                experiment.experiment_id if experiment else self.client.create_experiment(project)
            )
        return self._open_run(run, experiment_id)

    def _open_run(self, run: TrackedRun, experiment_id: str) -> LoggedSteps:
        """Resume the MLflow run with this id, or create it."""
        matches = self.client.search_runs([experiment_id], f"tags.{ID_TAG} = '{run.id}'")
        if matches:
            self.id = matches[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return {
                kind: step for kind in METRIC_KINDS if (step := self._last_step(kind)) is not None
            }
        created = self.client.create_run(experiment_id, tags={ID_TAG: run.id}, run_name=run.name)
        self.id = created.info.run_id
        self._log_parameters(run)
        return {}

    def log(self, metrics: StepMetrics) -> None:
        self._log_metrics(metrics.values, metrics.time, metrics.step)

    def finish(self, summary: Mapping[str, float], outcome: RunOutcome) -> None:
        self._log_metrics(summary, time.time(), int(summary.get("summary/steps_done", 0)))
        self.client.set_terminated(self.id, STATUS[outcome])

    def _last_step(self, kind: MetricKind) -> int | None:
        history = self.client.get_metric_history(self.id, f"{kind}/step")
        return max((metric.step for metric in history), default=None)

    def _log_metrics(self, values: Mapping[str, float], seconds: float, step: int) -> None:
        from mlflow.entities import Metric

        timestamp = round(seconds * 1000)
        metrics = [Metric(_clean_name(n), v, timestamp, step) for n, v in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def _log_parameters(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        parameters = [
            Param(_clean_name(key), str(value)[:MAX_PARAMETER_LENGTH])
            for key, value in flatten(run.config)
        ]
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self.client.log_batch(self.id, params=parameters[first : first + MAX_PARAMETERS])


def _clean_name(name: str) -> str:
    """Replace characters that MLflow does not allow in names, e.g. commas and brackets."""
    return re.sub(r"[^\w\-./ ]", "_", name)
