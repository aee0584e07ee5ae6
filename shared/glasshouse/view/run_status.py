"""Is a run running, finished, interrupted or failed? And how long will it take?"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from glasshouse.store.run_directory import LOCK, is_locked

Status = Literal["running", "finished", "interrupted", "failed", "empty"]
PHASE_EVENTS = ("start", "resume", "end", "interrupted", "stopped", "failed", "exhausted")
"""Events that decide the status of a run."""
LOCKS_FILE = Path("/proc/locks")


def is_being_written(run: Path) -> bool:
    """Does a process hold the run's lock? On Linux this is read from /proc/locks: trying to lock,
    even for a moment, could make a training that starts just then fail."""
    try:
        inode = os.stat(run / LOCK).st_ino
    except OSError:
        return False
    try:
        lines = LOCKS_FILE.read_text().splitlines()
    except OSError:
        return is_locked(run)
    return any(
        fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode)
        for fields in (line.split() for line in lines)
        if len(fields) > 5
    )


def find_status(
    events: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, is_active: bool
) -> Status:
    """Decide the status from the last event of a phase, the summary and the lock."""
    phases = [event["event"] for event in events if event["event"] in PHASE_EVENTS]
    last = phases[-1] if phases else ""
    if is_active:
        return "running"
    if last == "failed":
        return "failed"
    if summary is not None and summary.get("interrupted_at") is None:
        return "finished"
    if not phases and summary is None:
        return "empty"
    return "interrupted"


def seconds_left(rows: Sequence[Mapping[str, Any]], steps: int) -> float | None:
    """Estimate the rest of the training from the median of the last steps; None if unknown."""
    timed = [(row["step"], _timestamp(row)) for row in rows[-21:]]
    known = [(step, time) for step, time in timed if time is not None]
    rates = [
        (time - before_time) / (step - before)
        for (before, before_time), (step, time) in pairwise(known)
        if step > before and time >= before_time
    ]
    if not rates or not known:
        return None
    return max(0, steps - known[-1][0]) * statistics.median(rates)


def _timestamp(row: Mapping[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(row["timing"]["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None
