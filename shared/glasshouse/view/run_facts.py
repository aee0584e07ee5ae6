"""When a run was trained, for how long, by which code, and with which versions of its software."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.checksums import read_regular_file
from glasshouse.text import count_noun, format_duration
from glasshouse.view.checked_lines import Row

MAX_STATE_BYTES = 20_000_000


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


def read_versions(run: Path, checkpoint_steps: Sequence[int]) -> dict[str, str]:
    """The software and the starting weights that the newest readable checkpoint names."""
    for step in reversed(checkpoint_steps):
        try:
            file = run / "checkpoints" / f"step-{step:06d}" / "state.json"
            state = json.loads(read_regular_file(file)[:MAX_STATE_BYTES])
            versions = {str(name): str(value) for name, value in state["versions"].items()}
            return versions | {"starting weights": str(state.get("start", "unknown"))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return {}
