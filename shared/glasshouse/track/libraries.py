"""The built-in trackers, each under the name of its library, which is imported when the tracker starts.

Accounts, projects and servers come from the library's own environment variables (docs/runs.md). None of
them collects more than the numbers and the configuration.
"""

from __future__ import annotations

import contextvars
import fcntl
import io
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from glasshouse.config.loading import flatten, to_yaml
from glasshouse.terminal import shell_command
from glasshouse.track.trackers import METRIC_KINDS, LoggedSteps, StepMetrics, TrackedRun, tracker

PROJECT = "glasshouse"
"""The project of all runs, unless the tracker's environment variable names another."""
MLFLOW_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
MLFLOW_PARAMETERS, MLFLOW_LENGTH = 100, 6000
"""MLflow's limits: parameters per call, and characters of each."""


@tracker("tensorboard")
class TensorBoard:
    """Event files in the run directory. A resumed run writes them again from the start, since metrics.jsonl
    has everything that they hold: no step is missing or repeated."""

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

    def finish(self, summary: Mapping[str, float], outcome: str) -> None:
        rows = [f"| {name} | {value:.6g} |" for name, value in summary.items()]
        self.writer.add_text("summary", "\n".join([f"{outcome}\n", "| | |", "|---|---|", *rows]), 0)
        self.writer.close()


@tracker("trackio")
class Trackio:
    """A local database for `trackio show`, or a server (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL)."""

    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        # In a separate context, because Trackio allows one current run per context.
        context = contextvars.copy_context()
        with redirect_stdout(io.StringIO()):  # init prints
            self.run: Any = context.run(
                trackio.init,
                project=project,
                name=f"{run.name}-{run.id[:6]}",  # Trackio identifies runs by name
                config=run.config.model_dump(mode="json"),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.url = shell_command(["trackio", "show", "--project", project])
        if not self.run._is_local:
            return dict.fromkeys(METRIC_KINDS, self.run._next_step - 1)
        logs = SQLiteStorage.get_logs(project, run_id=self.run.id)
        steps = {k: [row["step"] for row in logs if f"{k}/step" in row] for k in METRIC_KINDS}
        return {kind: max(values) for kind, values in steps.items() if values}

    def log(self, metrics: StepMetrics) -> None:
        self.run.log(metrics.values, step=metrics.step)

    def finish(self, summary: Mapping[str, float], outcome: str) -> None:
        self.run.finish()  # Trackio has no summary


@tracker("wandb")
class Wandb:
    """The website, or with WANDB_MODE=offline files for `wandb sync`. The API key is not written to the run
    directory. Offline files cannot be resumed, so they are written again from the start."""

    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import
        import wandb

        is_offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun")
        if is_offline:
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            config=run.config.model_dump(mode="json"),
            dir=str(run.folder),
            resume=None if is_offline else "allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                save_code=False,
                disable_code=True,
                disable_git=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                finish_timeout=60.0,  # what remains needs `wandb sync`
                finish_timeout_raises=True,
            ),
        )
        for kind in METRIC_KINDS:
            self.run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        if is_offline:  # the summary may still be that of the deleted files
            self.url = f"{shell_command(['wandb', 'sync', run.folder / 'wandb'])}/offline-run-*"
            return {}
        self.url = self.run.url or "wandb"
        steps = {kind: self.run.summary.get(f"{kind}/step") for kind in METRIC_KINDS}
        return {kind: int(step) for kind, step in steps.items() if step is not None}

    def log(self, metrics: StepMetrics) -> None:
        self.run.log(metrics.values)

    def finish(self, summary: Mapping[str, float], outcome: str) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish(exit_code=0 if outcome == "finished" else 1)


@tracker("mlflow")
class MLflow:
    """The server named by MLFLOW_TRACKING_URI, or a SQLite file next to the run directory. A tag with the
    run's id identifies the MLflow run, so no MLflow id has to be stored."""

    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it logs each table it creates
        file = run.path.resolve().parent / "mlflow.db"
        uri = self.url = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{file}"
        if uri.endswith(str(file)):
            self.url = shell_command(["mlflow", "ui", "--backend-store-uri", uri])
        with open(file.with_name(".mlflow.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # runs that start together must not both create tables
            self.client: Any = MlflowClient(tracking_uri=uri)
            project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self.client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else self.client.create_experiment(project)
        matches = self.client.search_runs([experiment], f"tags.glasshouse_id = '{run.id}'")
        if matches:
            self.id = matches[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            tags = {"glasshouse_id": run.id}
            self.id = self.client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
            self._log_parameters(run)
        history = {k: self.client.get_metric_history(self.id, f"{k}/step") for k in METRIC_KINDS}
        return {kind: max(m.step for m in metrics) for kind, metrics in history.items() if metrics}

    def log(self, metrics: StepMetrics) -> None:
        self._log_metrics(metrics.values, metrics.time, metrics.step)

    def finish(self, summary: Mapping[str, float], outcome: str) -> None:
        self._log_metrics(summary, time.time(), int(summary.get("summary/steps_done", 0)))
        self.client.set_terminated(self.id, MLFLOW_STATUS[outcome])

    def _log_metrics(self, values: Mapping[str, float], seconds: float, step: int) -> None:
        from mlflow.entities import Metric

        timestamp = round(seconds * 1000)
        metrics = [Metric(_mlflow_name(n), v, timestamp, step) for n, v in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def _log_parameters(self, run: TrackedRun) -> None:
        from mlflow.entities import Param

        pairs = flatten(run.config)
        parameters = [Param(_mlflow_name(key), str(v)[:MLFLOW_LENGTH]) for key, v in pairs]
        for first in range(0, len(parameters), MLFLOW_PARAMETERS):
            self.client.log_batch(self.id, params=parameters[first : first + MLFLOW_PARAMETERS])


def _mlflow_name(name: str) -> str:
    """Replace characters that MLflow does not allow in names, e.g. commas and brackets."""
    return re.sub(r"[^\w\-./ ]", "_", name)
