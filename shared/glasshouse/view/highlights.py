"""Three rollouts worth reading: what the base model wrote to a typical problem, what the trained
model writes to it, and one that deserves a closer look."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from glasshouse.errors import RunDataError
from glasshouse.monitors.base import Monitor
from glasshouse.view.rollout_details import FrameCache, describe_rollout
from glasshouse.view.rollout_index import Frame
from glasshouse.view.suspicion import SUSPICIONS, find_suspicions
from glasshouse.view.text_monitors import score_rows

Row = dict[str, Any]


def select_highlights(
    monitors: Sequence[Monitor], frames: Sequence[Frame], cache: FrameCache
) -> list[dict[str, Any]]:
    """Rollouts of the last evaluation, or of the last training step if there is none: each with the
    reason why it is shown."""
    for kind in ("validation", "train"):
        steps = sorted({frame.step for frame in frames if frame.kind == kind})
        last = _read_newest(kind, steps, frames, cache)
        if not last:
            continue
        chosen = _choose(last, _read_step(kind, 0, frames, cache) if steps[-1] else [], monitors)
        return [
            {"reason": reason, "rollout": describe_rollout(monitors, row)} for reason, row in chosen
        ]
    return []


def _choose(last: list[Row], base: list[Row], monitors: Sequence[Monitor]) -> list[tuple[str, Row]]:
    median = statistics.median(_length(row) for row in last)
    most_are_correct = statistics.mode(bool(row["correct"]) for row in last)
    typical = min(
        (row for row in last if bool(row["correct"]) is most_are_correct),
        key=lambda row: (abs(_length(row) - median), str(row["key"]), row["sample"]),
    )
    same = [row for row in base if (row["key"], row["split"]) == (typical["key"], typical["split"])]
    same.sort(key=lambda row: row["sample"] != typical["sample"])
    outcome = "correct" if most_are_correct else "wrong"
    chosen = [("Before training: the base model on the same problem", row) for row in same[:1]]
    chosen.append(
        (f"After training: of median length ({median:g} tokens), {outcome} like most", typical)
    )
    others = [row for row in last if row is not typical]
    verdicts = score_rows(monitors, others)
    for row, scores in zip(others, verdicts, strict=True):
        if reasons := find_suspicions(row, scores):
            return [*chosen, (f"Worth a closer look: {SUSPICIONS[next(iter(reasons))]}", row)]
    if others:
        worst = min(others, key=lambda row: (row["reward"] or 0, -_length(row), str(row["key"])))
        chosen.append(("After training: the lowest reward, the longest of those", worst))
    if len(chosen) < 3 and len(others) > 1:
        best = max(others, key=lambda row: (row["reward"] or 0, _length(row), str(row["key"])))
        chosen.append(("After training: the highest reward, the longest of those", best))
    return chosen


def _length(row: Row) -> int:
    return int(row["length"] or 0)


def _read_newest(
    kind: str, steps: Sequence[int], frames: Sequence[Frame], cache: FrameCache
) -> list[Row]:
    """The rollouts of the newest step that can be read."""
    for step in reversed(steps):
        if rows := _read_step(kind, step, frames, cache):
            return rows
    return []


def _read_step(kind: str, step: int, frames: Sequence[Frame], cache: FrameCache) -> list[Row]:
    for frame in frames:
        if frame.kind == kind and frame.step == step:
            try:
                rows = cache.rows(frame)
            except RunDataError:
                return []
            return [
                {"ref": f"{kind}.{step}.{number}", "kind": kind, **row}
                for number, row in enumerate(rows)
            ]
    return []
