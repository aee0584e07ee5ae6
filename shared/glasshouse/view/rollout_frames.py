"""The frames of a run's rollouts: rows that were logged together, of one step or of one monitored model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from glasshouse.errors import RunError
from glasshouse.runs.monitor_results import read_monitored_rollouts
from glasshouse.runs.rollout_log import LOG, scan_log
from glasshouse.runs.rows import Row

KINDS = ("train", "validation", "discarded", "monitored")
CACHED_FRAMES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows of one step, or of one monitored model."""

    kind: str
    step: int
    sha256: str
    read: Callable[[], list[Row]]
    """Returns its verified rows; raises RunDataError if it is damaged."""
    expected_rows: int

    @property
    def identity(self) -> str:
        return f"{self.kind} {self.step} {self.sha256}"


def list_frames(run: Path, monitor: Mapping[str, Any] | None) -> list[Frame]:
    """Every frame of the rollout log, and of `monitor`, the run's monitor results."""
    logged = [
        Frame(frame.kind, frame.step, frame.sha256, frame.read, frame.rows)
        for frame in scan_log(run / "results" / LOG).frames
        if frame.kind in KINDS
    ]
    monitored = [
        Frame("monitored", checkpoint["step"], checkpoint["rows"]["sha256"],
              partial(read_monitored_rollouts, run / "results", checkpoint), 0)
        for checkpoint in (monitor or {}).get("checkpoints", [])
    ]  # fmt: skip
    return [*logged, *monitored]


class RolloutLog:
    """The frames of a run, and the rows of those that were read last: a page shows many rollouts of one
    step.

    Example: `RolloutLog(list_frames(run, None)).row("train.12.7")["text"]`
    """

    def __init__(self, frames: Sequence[Frame] = (), cached: int = CACHED_FRAMES) -> None:
        self.frames = list(frames)
        self._size = cached
        self._cache: OrderedDict[str, list[Row]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, kind: str, step: int) -> list[Row]:
        """The rollouts of one step with their references; empty if the run has none."""
        frame = next((f for f in self.frames if (f.kind, f.step) == (kind, step)), None)
        if frame is None:
            return []
        with self._lock:
            if frame.identity not in self._cache:
                self._cache[frame.identity] = [
                    {"ref": f"{kind}.{step}.{number}", **row}
                    for number, row in enumerate(frame.read())
                ]
                while len(self._cache) > self._size:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(frame.identity)
            return self._cache[frame.identity]

    def row(self, ref: str) -> Row:
        """The rollout that a reference names; raise if there is none."""
        kind, step, number = parse_ref(ref)
        rows = self.rows(kind, step)
        if number >= len(rows):
            raise RunError(f"This run has no rollout {ref}. It may have been removed by a resume.")
        return rows[number]


def parse_ref(ref: str) -> tuple[str, int, int]:
    """Split a reference such as `train.12.7`: kind, step, line in the frame."""
    kind, _, rest = ref.partition(".")
    step, _, row = rest.partition(".")
    if not (step.isdecimal() and row.isdecimal() and len(rest) < 30):
        raise RunError(f'"{ref[:60]}" is not a rollout. A reference looks like train.12.7.')
    return kind, int(step), int(row)
