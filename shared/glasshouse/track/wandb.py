"""Weights & Biases: the website, or with WANDB_MODE=offline files for `wandb sync`.

API key, project and entity come from W&B's environment variables (WANDB_API_KEY, WANDB_PROJECT,
WANDB_ENTITY) or from `wandb login`; none is written to the run directory. W&B's automatic
collection (console, code, git, machine) is disabled: it gets the numbers and the configuration only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from glasshouse.terminal import shell_command
from glasshouse.track.base import DEFAULT_PROJECT, LoggedSteps, RunOutcome, TrackedRun, tracker
from glasshouse.track.step_metrics import METRIC_KINDS, StepMetrics

UPLOAD_TIMEOUT = 60.0
"""Seconds to upload the rest when a run ends; what remains needs `wandb sync`."""


@tracker("wandb")
class Wandb:
    url = ""

    def start(self, run: TrackedRun) -> LoggedSteps:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import
        import wandb

        is_offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun")
        if is_offline:  # offline files cannot be resumed, so they are written again from the start
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT),
            id=run.id,
            name=run.name,
            config=run.config.model_dump(mode="json"),
            dir=str(run.folder),
            resume=None if is_offline else "allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", save_code=False, disable_code=True, disable_git=True,
                x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
                x_save_requirements=False, finish_timeout=UPLOAD_TIMEOUT,
                finish_timeout_raises=True,
            ),
        )  # fmt: skip
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

    def finish(self, summary: Mapping[str, float], outcome: RunOutcome) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish(exit_code=0 if outcome == "finished" else 1)
