"""When a run was trained, for how long, by which code, and with which versions of its software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.runs.checked_lines import Row
from glasshouse.runs.checkpoints import read_newest_state
from glasshouse.terminal import count_noun, format_duration


def describe_sessions(events: Sequence[Row], summary: Mapping[str, Any] | None) -> dict[str, str]:
    """Example: `{"started": "2026-11-16 15:20 UTC", "duration": "1:05", "commit": "6bec591"}`"""
    sessions = [event for event in events if event["event"] in ("start", "resume")]
    seconds = (summary or {}).get("seconds")
    commits = dict.fromkeys(str(s["commit"]) for s in sessions if s.get("commit"))
    resumed = sum(session["event"] == "resume" for session in sessions)
    facts = {
        "started": _format_time(str(sessions[0].get("time", ""))) if sessions else "unknown",
        "duration": format_duration(seconds)
        if isinstance(seconds, int | float)
        else "not finished",
        "commit": ", ".join(commits) or "unknown (not trained in a git work tree)",
    }
    return facts | ({"interruptions": f"resumed {count_noun(resumed, 'time')}"} if resumed else {})


def _format_time(timestamp: str) -> str:
    """`2026-11-16 15:20 UTC`"""
    return f"{timestamp[:10]} {timestamp[11:16]} UTC"


def read_versions(run: Path) -> dict[str, str]:
    """The software and the starting weights that the newest valid state of a checkpoint names."""
    state = read_newest_state(run / "checkpoints")
    versions = state.get("versions")
    if not isinstance(versions, dict):
        return {}
    named = {str(name): str(value) for name, value in versions.items()}
    return named | {"starting weights": str(state.get("start", "unknown"))}
