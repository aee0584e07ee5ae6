"""The sentence at the top of a run report: the change with its interval, or that none is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glasshouse.measures.registry import headline_accuracy, lookup
from glasshouse.report.arms import Arm
from glasshouse.report.monitor_table import find_measure
from glasshouse.report.run_data import RunData
from glasshouse.statistics import difference_interval, mean_interval, wilson_interval


def summarize_runs(arms: Sequence[Arm]) -> str:
    if len(arms) == 1 and len(arms[0].runs) == 1:
        return _summarize_run(arms[0].runs[0])
    return " ".join(_summarize_arm(arm, named=len(arms) > 1) for arm in arms)


def _summarize_run(run: RunData) -> str:
    """Accuracy before and after, then the verdict of monitoring."""
    before, after = (run.summary or {}).get("before"), (run.summary or {}).get("after")
    monitoring = run.monitor.get("verdict", "") if run.monitor else ""
    if not before or not after:
        return f"The run is not finished. {monitoring}".strip()
    measure = _shared_headline(before, after)
    low, high = difference_interval(_estimate(after, measure), _estimate(before, measure))
    label = f"Held-out {lookup(measure).label}"
    change = _describe_change(label, before[measure], after[measure], low, high)
    if measure != "accuracy":
        change += f" Greedy: {before['accuracy']:.3f} → {after['accuracy']:.3f}."
    return f"{change} {monitoring}".strip()


def _summarize_arm(arm: Arm, named: bool) -> str:
    """The mean change over seeds, with Student's interval."""
    finished = [
        (run.summary["before"], run.summary["after"])
        for run in arm.runs
        if run.summary and run.summary.get("before") and run.summary.get("after")
    ]
    measures = {_shared_headline(*pair) for pair in finished}
    measure = measures.pop() if len(measures) == 1 else "accuracy"
    label = f"held-out {lookup(measure).label}"
    pairs = [(before[measure], after[measure]) for before, after in finished]
    name = f"{arm.name}: " if named else ""
    if not pairs:
        return f"{name}no run is finished."
    if len(pairs) == 1:
        before, after = pairs[0]
        return f"{name}{label} {before:.3f} → {after:.3f} over 1 seed, without an interval."
    change = _describe_mean_change(f"{label} over {len(pairs)} seeds", pairs)
    return f"{name}{change} {_summarize_uplift(arm)}".strip()


def _summarize_uplift(arm: Arm) -> str:
    """The change of the necessity uplift over the monitored seeds."""
    pairs = []
    for run in arm.runs:
        subjects = run.monitor["subjects"] if run.monitor else []
        estimates = [
            find_measure(subject, "necessity_uplift") for subject in subjects[:1] + subjects[-1:]
        ]
        values = [estimate["measure"]["value"] for estimate in estimates if estimate]
        if len(values) == 2 and None not in values:
            pairs.append((values[0], values[1]))
    if len(pairs) < 2:
        return ""
    return _describe_mean_change(f"Necessity uplift over {len(pairs)} seeds", pairs)


def _describe_mean_change(what: str, pairs: Sequence[tuple[float, float]]) -> str:
    before, after = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    _, low, high = mean_interval([b - a for a, b in pairs])
    return _describe_change(what, before, after, low, high)


def _describe_change(what: str, before: float, after: float, low: float, high: float) -> str:
    interval = f"{after - before:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    if low <= 0 <= high:
        what = f"{what[0].lower()}{what[1:]}"
        return f"A change of {what} is not shown: {before:.3f} → {after:.3f} ({interval})."
    direction = "rose" if low > 0 else "fell"
    return f"{what} {direction} from {before:.3f} to {after:.3f} ({interval})."


def _shared_headline(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The headline accuracy that both evaluations have."""
    return headline_accuracy({key: before[key] for key in before if key in after})


def _estimate(scores: dict[str, Any], measure: str) -> tuple[float, float, float]:
    """Value and interval. Without a stored interval it is Wilson's, as if each problem had one sample."""
    value, problems = scores[measure], scores["problems"]
    low, high = wilson_interval(value * problems, problems)
    return value, scores.get(f"{measure}_low", low), scores.get(f"{measure}_high", high)
