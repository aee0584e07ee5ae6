"""Is a run running, finished, interrupted or failed? How long will it take, and how was it trained?"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from glasshouse.runs.checkpoints import read_newest_state
from glasshouse.runs.run_directory import LOCK, is_locked
from glasshouse.terminal import count_noun, format_duration

Status = Literal["running", "finished", "interrupted", "failed", "empty"]
PHASE_EVENTS = ("start", "resume", "end", "interrupted", "stopped", "failed", "exhausted")
"""Events that decide the status of a run."""
LOCKS_FILE = Path("/proc/locks")
LOCKS_SECONDS = 0.2
"""How long an answer about locks is used again: a list of runs asks for each of them."""


def is_being_written(run: Path) -> bool:
    """Does a process hold the run's lock? On Linux this is read from /proc/locks: trying to lock,
    even for a moment, could make a training that starts just then fail."""
    try:
        inode = os.stat(run / LOCK).st_ino
    except OSError:
        return False
    inodes = _locked_inodes(int(time.monotonic() / LOCKS_SECONDS))
    return is_locked(run) if inodes is None else str(inode) in inodes


@lru_cache(maxsize=1)
def _locked_inodes(_: int) -> frozenset[str] | None:
    """The inodes of all locked files, read once per `LOCKS_SECONDS`; None if they are unknown."""
    try:
        rows = [line.split() for line in LOCKS_FILE.read_text().splitlines()]
    except OSError:
        return None
    return frozenset(
        fields[5].rpartition(":")[2] for fields in rows if len(fields) > 5 and fields[1] == "FLOCK"
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
    known = [(step, moment) for step, moment in timed if moment is not None]
    rates = [
        (moment - before_moment) / (step - before)
        for (before, before_moment), (step, moment) in pairwise(known)
        if step > before and moment >= before_moment
    ]
    if not rates or not known:
        return None
    return max(0, steps - known[-1][0]) * statistics.median(rates)


def _timestamp(row: Mapping[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(row["timing"]["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None


def describe_sessions(
    events: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None
) -> dict[str, str]:
    """Example: `{"started": "2026-11-16 15:20 UTC", "duration": "1:05", "commit": "6bec591"}`"""
    sessions = [event for event in events if event["event"] in ("start", "resume")]
    started = str(sessions[0].get("time", "")) if sessions else ""
    seconds = (summary or {}).get("seconds")
    commits = dict.fromkeys(str(s["commit"]) for s in sessions if s.get("commit"))
    resumed = sum(session["event"] == "resume" for session in sessions)
    facts = {
        "started": f"{started[:10]} {started[11:16]} UTC" if sessions else "unknown",
        "duration": format_duration(seconds)
        if isinstance(seconds, int | float)
        else "not finished",
        "commit": ", ".join(commits) or "unknown (not trained in a git work tree)",
    }
    return facts | ({"interruptions": f"resumed {count_noun(resumed, 'time')}"} if resumed else {})


def read_versions(run: Path) -> dict[str, str]:
    """The software and the starting weights that the newest valid state of a checkpoint names."""
    state = read_newest_state(run / "checkpoints")
    versions = state.get("versions")
    if not isinstance(versions, dict):
        return {}
    named = {str(name): str(value) for name, value in versions.items()}
    return named | {"starting weights": str(state.get("start", "unknown"))}
