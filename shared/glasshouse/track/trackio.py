"""Trackio: a local database that `trackio show` opens in a browser; no account, no network.

TRACKIO_SPACE_ID or TRACKIO_SERVER_URL send it elsewhere, TRACKIO_PROJECT names the project.
"""

from __future__ import annotations

import contextvars
import io
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from glasshouse.errors import TrackError
from glasshouse.track.base import PROJECT, Ending, Held, Subject
from glasshouse.track.records import KINDS, Kind, Record


class Trackio:
    look = ""

    def start(self, run: Subject) -> Held:
        import trackio

        self.project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        # In a context of its own, so that it does not take this for the process's one and only run.
        alone = contextvars.copy_context()
        with redirect_stdout(io.StringIO()):  # its greetings
            self.run: Any = alone.run(
                trackio.init,
                project=self.project,
                name=f"{run.name}-{run.id[:6]}",  # it finds runs by their names
                config=run.config.model_dump(mode="json"),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.look = f"trackio show --project {self.project}"
        self.sent = self._held()
        return dict(self.sent)

    def log(self, record: Record) -> None:
        self.run.log(record.numbers, step=record.step)
        self.sent[record.kind] = record.step

    def end(self, numbers: Mapping[str, float], how: Ending) -> None:
        """It has no summary. It swallows its own errors, too, so what has arrived is compared."""
        self.run.finish()
        if self.run._is_local and self._held() != self.sent:
            raise TrackError("not every step has arrived in its database")

    def _held(self) -> dict[Kind, int]:
        """The last step of each kind in its database; of a database elsewhere, the last step."""
        if not self.run._is_local:
            return dict.fromkeys(KINDS, self.run._next_step - 1)
        from trackio.sqlite_storage import SQLiteStorage

        logs = SQLiteStorage.get_logs(self.project, run_id=self.run.id)
        steps = {kind: [row["step"] for row in logs if f"{kind}/step" in row] for kind in KINDS}
        return {kind: max(found) for kind, found in steps.items() if found}
