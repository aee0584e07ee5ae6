"""The sentence at the top of a report: what happened, with its interval, or that it is not shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glasshouse.report.arms import Arm
from glasshouse.report.monitor_table import measure
from glasshouse.report.run_data import Gathered
from glasshouse.statistics import mean_interval, newcombe


def verdict(arms: Sequence[Arm]) -> str:
    if len(arms) == 1 and len(arms[0].runs) == 1:
        return _run(arms[0].runs[0])
    return " ".join(_arm(arm, named=len(arms) > 1) for arm in arms)


def _run(run: Gathered) -> str:
    """One run: accuracy before and after, then what monitoring said."""
    before, after = (run.summary or {}).get("before"), (run.summary or {}).get("after")
    readable = run.monitor.get("verdict", "") if run.monitor else ""
    if not before or not after:
        return f"The run has not come to its end. {readable}".strip()
    low, high = newcombe(_right(after), after["problems"], _right(before), before["problems"])
    return f"{_told('Held-out accuracy', before['accuracy'], after['accuracy'], low, high)} {readable}".strip()


def _arm(arm: Arm, named: bool) -> str:
    """Several seeds: the mean change over them, with Student's interval."""
    ends = [
        (run.summary["before"]["accuracy"], run.summary["after"]["accuracy"])
        for run in arm.runs
        if run.summary and run.summary.get("before") and run.summary.get("after")
    ]
    name = f"{arm.name}: " if named else ""
    if not ends:
        return f"{name}no run has come to its end."
    before, after = (sum(values) / len(ends) for values in zip(*ends, strict=True))
    count = f"over {len(ends)} seed{'s' * (len(ends) != 1)}"
    if len(ends) == 1:
        return f"{name}held-out accuracy {before:.3f} → {after:.3f} {count}, which has no interval."
    _, low, high = mean_interval([b - a for a, b in ends])
    told = _told(f"held-out accuracy {count}", before, after, low, high)
    return f"{name}{told} {_uplift(arm)}".strip()


def _uplift(arm: Arm) -> str:
    """How the necessity uplift of the monitored seeds changed."""
    ends = []
    for run in arm.runs:
        subjects = run.monitor["subjects"] if run.monitor else []
        found = [measure(entry, "necessity uplift") for entry in subjects[:1] + subjects[-1:]]
        values = [f["measure"]["value"] for f in found if f]
        if len(values) == 2 and None not in values:
            ends.append((values[0], values[1]))
    if len(ends) < 2:
        return ""
    before, after = (sum(values) / len(ends) for values in zip(*ends, strict=True))
    _, low, high = mean_interval([b - a for a, b in ends])
    return _told(f"Necessity uplift over {len(ends)} seeds", before, after, low, high)


def _told(what: str, before: float, after: float, low: float, high: float) -> str:
    within = f"{after - before:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    if low <= 0 <= high:
        return f"A change of {what[0].lower()}{what[1:]} is not shown: {before:.3f} → {after:.3f} ({within})."
    how = "rose" if low > 0 else "fell"
    return f"{what} {how} from {before:.3f} to {after:.3f} ({within})."


def _right(found: dict[str, Any]) -> int:
    return round(found["accuracy"] * found["problems"])
