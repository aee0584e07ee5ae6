"""Reads rollouts of any trainer for the page: the counterpart of `run_reader.py` for what `glasshouse measure` reads.

Rollouts are read in batches as the page asks for them, so that a list is shown before a large file is read; the
measures are computed when somebody looks at them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from glasshouse.errors import GlasshouseError
from glasshouse.measurement.file import RolloutFile
from glasshouse.monitors.base import Monitor
from glasshouse.runs.rows import Row, to_row
from glasshouse.runs.run_directory import stamp_file
from glasshouse.tables import list_files
from glasshouse.terminal import count_noun
from glasshouse.view.measured import summarize_measures
from glasshouse.view.rollout_index import Frame
from glasshouse.view.run_measures import collect_measures, metric_columns
from glasshouse.view.run_reader import NOTHING, RunLocation
from glasshouse.view.text_monitors import Verdict

BATCH = 512


class FileReader:
    """A file or a folder of rollouts.

    Example: `FileReader(RunLocation("trl", Path("completions"), is_file=True), {"map": ["label=hacked"]})`
    """

    def __init__(
        self,
        location: RunLocation,
        options: Mapping[str, Any] | None = None,
        file: RolloutFile | None = None,
    ) -> None:
        self.location, self.options = location, options or {}
        self.version = 0
        self.file = file or RolloutFile(location.path, **self.options)
        self.problem = ""
        """Why the file cannot be read any more: it changed."""
        self._stamp: Any = None
        self._lock = threading.Lock()
        self._summary: dict[str, Any] = {}
        self.frames: list[Frame] = []
        self.checkpoints: list[int] = []

    @property
    def monitors(self) -> list[Monitor]:
        return [fitted.monitor for fitted in self.file.fitted if fitted.monitor]

    @property
    def frames_stamp(self) -> Any:
        """Changes when there are other frames."""
        return self.version, len(self.frames)

    def refresh(self) -> bool:
        """Start again if a file has changed; returns whether one did."""
        stamp = stamp_files(self.location.path)
        if stamp == self._stamp:
            return False
        try:
            if self._stamp is not None:
                self.file = RolloutFile(self.location.path, **self.options)
            self.problem = ""
        except GlasshouseError as error:
            self.problem = str(error)
        self._stamp, self._summary = stamp, {}
        self.version += 1
        self._rollouts = self.file.source.rollouts()
        self._groups: dict[str, int] = {}
        self._samples: Counter[tuple[str, str]] = Counter()
        self._batch: list[Row] = []
        self.frames = []
        self._add_frame()
        return True

    def _add_frame(self) -> None:
        number = len(self.frames)
        sha256 = f"{self.version}"
        read = partial(self._read_batch, number)
        self.frames.append(Frame(f"file.{number}", "file", None, sha256, read, 0))

    def _read_batch(self, number: int) -> list[Row]:
        """The next rollouts; the last batch can be read again, since storing it may fail."""
        if number == len(self.frames) - 1:
            rollouts = list(islice(self._rollouts, BATCH))
            outputs = self.file.score(rollouts)
            names = [monitor.name for monitor in self.file.fitted]
            self._batch = []
            for place, rollout in enumerate(rollouts):
                key, checkpoint = rollout.problem.key, rollout.checkpoint
                group = self._groups.setdefault(key, len(self._groups))
                sample = self._samples[checkpoint, key]
                self._samples[checkpoint, key] += 1
                verdicts: dict[str, Verdict] = {
                    name: {n: getattr(column[place], n) for n in ("score", "flagged", "reason")}
                    for name, column in zip(names, outputs, strict=True)
                }
                own = {"group": group, "sample": sample, "verdicts": verdicts}
                self._batch.append(to_row(rollout, with_tokens=False) | own)
            if len(rollouts) == BATCH:
                self._add_frame()
        return self._batch

    # --- what the page shows ---------------------------------------------------------------

    def measure(self) -> dict[str, Any]:
        """The measures, computed once; what `measured.summarize_measures` returns."""
        with self._lock:
            if not self._summary:
                self._summary = summarize_measures(self.file.measure())
            return self._summary

    def describe(self) -> dict[str, Any]:
        """Everything about the file, in the form of a run."""
        problem, summary = self.problem, dict[str, Any]()
        try:
            summary = self.measure() if not problem else {}
        except GlasshouseError as error:
            problem = str(error)
        cells = summary.get("checkpoints", [])
        rollouts = count_noun(summary.get("rollouts", 0), "rollout")
        damage = {"file": self.location.path.name, "problem": problem.rstrip("."), "remedy": ""}
        return {
            **NOTHING,
            **describe_file(self.location, self.file.source.format.name),
            "version": self.version,
            "tabs": ["overview", *([""] if len(cells) > 1 else []), "rollouts", "problems"],
            "facts": f"{rollouts}, format {self.file.source.format.name}",
            "metrics": metric_columns([]),
            "measures": collect_measures([], summary),
            "names": {cell["step"]: cell["name"] for cell in cells},
            "checkpoints": self.checkpoints,
            **{n: summary[n] for n in ("verdict", "said", "unsaid", "settings") if n in summary},
            "damage": [damage] if problem else [],
        }


def describe_file(location: RunLocation, format: str = "") -> dict[str, Any]:
    """What a run has in the list of runs, of a file."""
    texts = dict.fromkeys(("study", "style", "algorithm", "model"), "")
    none = {"seed": 0, "step": 0, "steps": 0, "seconds_left": None, "status": "file"}
    return {"id": location.id, "task": format, **texts, **none}


def read_file_overview(location: RunLocation) -> dict[str, Any]:
    """One line of the list of runs; it has no measures, which may take seconds."""
    moment = max((item[2] for item in stamp_files(location.path) if item), default=0) / 1e9
    updated = datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    none: dict[str, Any] = {"accuracy": None, "monitorability": None, "damage": []}
    return {**describe_file(location), "updated": updated, **none}


def stamp_files(path: Path) -> tuple[Any, ...]:
    """Changes when a file of rollouts changes; empty if there is none any more."""
    with suppress(GlasshouseError):
        return tuple(map(stamp_file, list_files(path)))
    return ()
