"""Weights & Biases: the website, or with WANDB_MODE=offline files that `wandb sync` uploads.

Key, project and entity come from W&B's own environment variables (WANDB_API_KEY, WANDB_PROJECT,
WANDB_ENTITY) or from `wandb login`; none is ever written into the run directory. What W&B would
gather by itself (console, code, git, machine) is switched off: it is told the numbers and the
configuration, nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from glasshouse.track.base import PROJECT, Ending, Held, Subject
from glasshouse.track.records import KINDS, Record

UPLOAD = 60.0
"""Seconds for what is left to upload when a run ends; after that it is for `wandb sync`."""


class Wandb:
    look = ""

    def start(self, run: Subject) -> Held:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported
        import wandb

        offline = os.environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun")
        if offline:  # cannot go on in its files, so they are written anew from the record
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            config=run.config.model_dump(mode="json"),
            dir=str(run.folder),
            resume=None if offline else "allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", save_code=False, disable_code=True, disable_git=True,
                x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
                x_save_requirements=False, finish_timeout=UPLOAD, finish_timeout_raises=True,
            ),
        )  # fmt: skip
        for kind in KINDS:
            self.run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        if offline:  # its summary may be that of the files that are gone
            self.look = f"wandb sync {run.folder}/wandb/offline-run-*"
            return {}
        self.look = self.run.url or "wandb"
        steps = {kind: self.run.summary.get(f"{kind}/step") for kind in KINDS}
        return {kind: int(step) for kind, step in steps.items() if step is not None}

    def log(self, record: Record) -> None:
        self.run.log(record.numbers)

    def end(self, numbers: Mapping[str, float], how: Ending) -> None:
        self.run.summary.update(dict(numbers))
        self.run.finish(exit_code=0 if how == "finished" else 1)
