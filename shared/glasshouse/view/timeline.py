"""How a run spends its time: the phases of each step on a clock, with faults and respawns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from glasshouse.view.checked_lines import Row
from glasshouse.view.run_config import config_value
from glasshouse.view.run_reader import describe_event, finite

PHASES = ("sample", "generate", "reward", "learn", "log")
"""The phases of a step in the order in which the training loop runs them."""
OTHER_EVENTS = ("evaluation", "save", "fault", "respawn", "resume", "start", "warning", "failed",
                "interrupted", "stopped", "end", "damaged")  # fmt: skip
MAX_STEPS = 400


def build_timeline(
    metrics: Sequence[Row], events: Sequence[Row], config: Mapping[str, Any], first: int, last: int
) -> dict[str, Any]:
    """The spans of the steps `first` to `last`, in seconds since the earliest of them.

    metrics.jsonl has the time at the end of each step and the seconds of each phase, so the start
    of a phase is the end minus what follows it. Generation and learning run in processes of their
    own with the Monarch backend, and overlap with `max_offpolicy_steps: 1`.
    """
    chosen = [row for row in metrics if first <= row["step"] <= last][:MAX_STEPS]
    spans = [span for row in chosen for span in _spans(row, config)]
    instants = [
        {"kind": e["event"], "time": time, "step": e.get("step"), "text": describe_event(e),
         "seconds": finite(e.get("seconds")), "process": _process(e)}
        for e in events
        if e["event"] in OTHER_EVENTS and (time := _seconds(e.get("time"))) is not None
    ]  # fmt: skip
    if not spans:
        return {"spans": [], "events": [], "lanes": [], "origin": None}
    origin = min(span["start"] for span in spans)
    end = max(span["end"] for span in spans)
    for span in spans:
        span["start"], span["end"] = span["start"] - origin, span["end"] - origin
    near = [
        dict(i, time=i["time"] - origin) for i in instants if origin - 1 <= i["time"] <= end + 1
    ]
    lanes = list(dict.fromkeys(span["lane"] for span in spans))
    return {"spans": spans, "events": near, "lanes": lanes, "origin": origin}


def _spans(row: Row, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    timing = row.get("timing")
    if not isinstance(timing, dict) or (end := _seconds(timing.get("time"))) is None:
        return
    is_monarch = config_value(config, "backend", "local") == "monarch"
    generators = config_value(config, "monarch.generators", 1)
    learners = config_value(config, "monarch.learners", 1)
    lanes = {
        "generate": f"{generators} generators" if is_monarch else "this process",
        "learn": f"{learners} learner{'s' * (learners != 1)}" if is_monarch else "this process",
    }
    for phase in reversed(PHASES):
        seconds = finite(timing.get(phase)) or 0.0
        lane = lanes.get(phase, "controller" if is_monarch else "this process")
        if seconds:
            yield {
                "step": row["step"], "phase": phase, "lane": lane, "start": end - seconds, "end": end,
            }  # fmt: skip
        if phase == "learn" and (sync := _sync_seconds(timing)):
            yield {
                "step": row["step"], "phase": "sync", "lane": "weight sync",
                "start": end - min(sync, seconds), "end": end,
            }  # fmt: skip
        end -= seconds


def _process(event: Row) -> str:
    for name in ("generator", "learner", "host"):
        if name in event:
            return f"{name} {event[name]}"
    return ""


def _seconds(time: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return None


def _sync_seconds(timing: Mapping[str, Any]) -> float:
    """Publishing the weights and loading them in the slowest generator."""
    values = [
        finite(v) for name, v in timing.items() if name.startswith("sync") and name != "sync_bytes"
    ]
    return sum(value for value in values if value)
