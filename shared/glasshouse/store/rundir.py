"""The run directory: the API between training and everything that looks at it later.

config.yaml                  the resolved configuration
data/evaluation.jsonl        the held-out problems
results/metrics.jsonl        a line a step
results/events.jsonl         a line an event
results/rollouts/            every prompt and completion
results/summary.json         before, after, and where it all is
checkpoints/step-000060/     a model in the Hugging Face layout
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glasshouse.config import Config, RecordConfig, dump
from glasshouse.errors import RunError
from glasshouse.policy.models import Policy, save
from glasshouse.store.files import sync_folder, write_json, write_text
from glasshouse.store.rollouts import RolloutLog


class RunDirectory:
    """One run's files.

    Example: `RunDirectory.create(config)`; then `run.metrics(row)`, `run.event("save", …)`.
    """

    def __init__(self, path: Path, record: RecordConfig | None = None) -> None:
        self.path = path
        self.results = path / "results"
        record = record or RecordConfig()
        self.rollouts = RolloutLog(self.results / "rollouts", record.level, record.tokens_every)

    @classmethod
    def create(cls, config: Config) -> RunDirectory:
        """A new directory; one that already holds a run is never written into."""
        path = Path(config.out) if config.out else next_free(config)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(
                f"{path} already holds files, and a run never overwrites another. "
                "Choose another directory with out=…, or remove this one."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_text(path / "config.yaml", dump(config))
        except OSError as error:
            raise RunError(
                f"The run directory {path} cannot be written: {error.strerror}."
            ) from None
        return cls(path, config.record)

    def metrics(self, row: dict[str, Any]) -> None:
        self._line("metrics.jsonl", row)

    def event(self, kind: str, **what: Any) -> None:
        """Something happened: what, at which step, when."""
        self._line("events.jsonl", {"event": kind, "time": now(), **what})

    def summary(self, value: dict[str, Any]) -> Path:
        path = self.results / "summary.json"
        write_json(path, value)
        return path

    def checkpoint(self, policy: Policy, step: int) -> Path:
        """The model as it is now: written aside, then renamed, so that it is whole or not there."""
        final = self.path / "checkpoints" / f"step-{step:06d}"
        aside = final.with_name(f".{final.name}.tmp")
        save(policy, aside)
        os.replace(aside, final)
        sync_folder(final.parent)
        self.event("save", step=step, path=str(final.relative_to(self.path)))
        return final

    def _line(self, name: str, row: dict[str, Any]) -> None:
        with open(self.results / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def next_free(config: Config) -> Path:
    """runs/<task>-<algorithm>-<number>, the first number not taken."""
    stem = f"{config.task.name}-{config.learn.algorithm}"
    number = 1
    while (path := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return path


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
