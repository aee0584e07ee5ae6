"""How a run spends its time: what each process did during the chosen steps, with faults and respawns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from glasshouse.view.checked_lines import Row
from glasshouse.view.run_config import config_value
from glasshouse.view.run_measures import finite
from glasshouse.view.run_reader import describe_event

PHASES = ("sample", "generate", "reward", "learn", "log")
"""The phases of a step in the order in which the training loop runs them."""
OTHER_EVENTS = ("evaluation", "save", "fault", "respawn", "resume", "start", "warning", "failed",
                "interrupted", "stopped", "end", "damaged")  # fmt: skip
MAX_STEPS = 400
MARGIN_SECONDS = 1.0
"""Events this much before the first span, or after the last, are shown too."""
Span = dict[str, Any]


def build_timeline(
    metrics: Sequence[Row], events: Sequence[Row], config: Mapping[str, Any], first: int, last: int
) -> dict[str, Any]:
    """What each process did in the steps `first` to `last`; times are seconds since 1970.

    A line of metrics.jsonl has the time at the end of its step and the seconds of each phase, so the
    start of a phase is the end minus what follows it. With the Monarch backend it also has what each
    generator and learner did since the line before (`timing.spans`). Lines of older runs have not:
    there, a lane shows the time in which the step waited for all generators.
    """
    chosen = [row for row in metrics if first <= row["step"] <= last][:MAX_STEPS]
    spans = [span for row in chosen for span in _spans(row, config)]
    if not spans:
        return {"spans": [], "events": [], "lanes": []}
    start = min(span["start"] for span in spans) - MARGIN_SECONDS
    end = max(span["end"] for span in spans) + MARGIN_SECONDS
    near = [
        {"kind": e["event"], "time": time, "step": e.get("step"), "text": describe_event(e),
         "seconds": finite(e.get("seconds")), "process": _process(e)}
        for e in events
        if e["event"] in OTHER_EVENTS
        and (time := _seconds(e.get("time"))) is not None
        and start <= time <= end
    ]  # fmt: skip
    spans += [
        {"step": e["step"], "phase": "respawn", "lane": e["process"],
         "start": max(start, e["time"] - e["seconds"]), "end": e["time"]}
        for e in near
        if e["kind"] == "respawn" and e["seconds"]
    ]  # fmt: skip
    lanes = sorted({span["lane"] for span in spans}, key=_lane_order)
    return {"spans": spans, "events": near, "lanes": lanes}


def _spans(row: Row, config: Mapping[str, Any]) -> Iterator[Span]:
    timing = row.get("timing")
    if not isinstance(timing, dict) or (end := _seconds(timing.get("time"))) is None:
        return
    is_monarch = config_value(config, "backend", "local") == "monarch"
    logged = list(_logged_spans(row["step"], timing))
    yield from logged
    this = "controller" if is_monarch else "this process"
    lanes = {"generate": "all generators", "learn": "all learners"} if is_monarch else {}
    for phase in reversed(PHASES):
        seconds = finite(timing.get(phase)) or 0.0
        is_logged = bool(logged) and phase in lanes
        if seconds and not is_logged:
            yield {
                "step": row["step"], "phase": phase, "lane": lanes.get(phase, this),
                "start": end - seconds, "end": end,
            }  # fmt: skip
        if phase == "learn" and not is_logged and (sync := _sync_seconds(timing)):
            yield {
                "step": row["step"], "phase": "sync", "lane": "weight sync",
                "start": end - min(sync, seconds), "end": end,
            }  # fmt: skip
        end -= seconds


def _logged_spans(step: int, timing: Mapping[str, Any]) -> Iterator[Span]:
    """What the processes of the Monarch backend did: `[process, phase, start, end]`."""
    spans = timing.get("spans")
    for span in spans if isinstance(spans, list) else ():
        if isinstance(span, list) and len(span) == 4:
            lane, phase, start, end = span
            if finite(start) is not None and finite(end) is not None:
                yield {"step": step, "phase": str(phase), "lane": str(lane), "start": start, "end": end}  # fmt: skip


def _lane_order(lane: str) -> tuple[int, int, str]:
    """The controller first, then learners, then generators by number."""
    name, _, number = lane.rpartition(" ")
    order = ("this process", "controller", "all learners", "learner", "weight sync", "generator")
    place = next((n for n, known in enumerate(order) if known in (lane, name)), len(order))
    return place, int(number) if number.isdecimal() else 0, lane


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
