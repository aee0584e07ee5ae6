"""MLflow: a server that MLFLOW_TRACKING_URI names, or a SQLite file beside the run directory.

The run is found again by a tag with its id, so nothing of MLflow's own has to be kept.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from glasshouse.config import leaves
from glasshouse.track.base import PROJECT, Ending, Held, Subject
from glasshouse.track.records import KINDS, Kind, Record

TAG = "glasshouse_id"
STATUS: dict[Ending, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
PARAMETERS = 100
"""As many as MLflow takes at once."""
LONGEST = 6000
"""Characters of a parameter."""


class MLflow:
    look = ""

    def start(self, run: Subject) -> Held:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it would tell of every new table
        file = run.path.resolve().parent / "mlflow.db"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{file}"
        self.look = f"mlflow ui --backend-store-uri {uri}" if uri.endswith(str(file)) else uri
        with open(file.with_name(".mlflow.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # runs that start together make tables only once
            self.client: Any = MlflowClient(tracking_uri=uri)
            project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            there = self.client.get_experiment_by_name(project)
            experiment = there.experiment_id if there else self.client.create_experiment(project)
        return self._enter(run, experiment)

    def _enter(self, run: Subject, experiment: str) -> Held:
        """Find the run again, or make it."""
        found = self.client.search_runs([experiment], f"tags.{TAG} = '{run.id}'")
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return {kind: step for kind in KINDS if (step := self._last(kind)) is not None}
        created = self.client.create_run(experiment, tags={TAG: run.id}, run_name=run.name)
        self.id = created.info.run_id
        self._parameters(run)
        return {}

    def log(self, record: Record) -> None:
        self._metrics(record.numbers, record.time, record.step)

    def end(self, numbers: Mapping[str, float], how: Ending) -> None:
        self._metrics(numbers, time.time(), int(numbers.get("summary/steps_done", 0)))
        self.client.set_terminated(self.id, STATUS[how])

    def _last(self, kind: Kind) -> int | None:
        history = self.client.get_metric_history(self.id, f"{kind}/step")
        return max((metric.step for metric in history), default=None)

    def _metrics(self, numbers: Mapping[str, float], when: float, step: int) -> None:
        from mlflow.entities import Metric

        stamp = round(when * 1000)
        self.client.log_batch(
            self.id, metrics=[Metric(_allowed(n), v, stamp, step) for n, v in numbers.items()]
        )

    def _parameters(self, run: Subject) -> None:
        from mlflow.entities import Param

        given = [Param(_allowed(k), str(v)[:LONGEST]) for k, v in leaves(run.config)]
        for first in range(0, len(given), PARAMETERS):
            self.client.log_batch(self.id, params=given[first : first + PARAMETERS])


def _allowed(name: str) -> str:
    """MLflow's names know no commas and brackets."""
    return re.sub(r"[^\w\-./ ]", "_", name)
