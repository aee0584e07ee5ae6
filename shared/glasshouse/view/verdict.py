"""The sentence at the top of a page: the change with its interval, or that none is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glasshouse.measurement.closed_forms import difference_interval, mean_interval, wilson_interval
from glasshouse.measurement.registry import headline_accuracy, lookup
from glasshouse.runs.monitor_results import find_measure

Results = Mapping[str, Any]
Finished = tuple[Results | None, Results | None]
"""summary.json and monitor.json of a run; None where a run has none."""


def summarize_run(summary: Results | None, monitor: Results | None) -> str:
    """Accuracy before and after training, then the verdict of monitoring.

    Example: `summarize_run(reader.summary, reader.monitor)` may give "Held-out accuracy, sampled rose
    from 0.343 to 0.903 (+0.560, 95 % interval +0.516 to +0.599). Greedy: 0.000 → 0.965."
    """
    before, after = _ends(summary)
    monitoring = str((monitor or {}).get("verdict", ""))
    if not before or not after:
        return f"The run is not finished. {monitoring}".strip()
    measure = _shared_headline(before, after)
    low, high = difference_interval(_estimate(after, measure), _estimate(before, measure))
    label = f"Held-out {lookup(measure).label}"
    change = _describe_change(label, before[measure], after[measure], low, high)
    if measure != "accuracy":
        change += f" Greedy: {before['accuracy']:.3f} → {after['accuracy']:.3f}."
    return f"{change} {monitoring}".strip()


def summarize_arms(arms: Mapping[str, Sequence[Finished]]) -> str:
    """The mean change of each arm over its seeds, with Student's interval."""
    return " ".join(_summarize_arm(name, runs, len(arms) > 1) for name, runs in arms.items())


def _summarize_arm(arm: str, runs: Sequence[Finished], named: bool) -> str:
    finished = [
        (before, after) for before, after in (_ends(s) for s, _ in runs) if before and after
    ]
    measures = {_shared_headline(before, after) for before, after in finished}
    measure = measures.pop() if len(measures) == 1 else "accuracy"
    label = f"held-out {lookup(measure).label}"
    pairs = [(before[measure], after[measure]) for before, after in finished]
    name = f"{arm}: " if named else ""
    if not pairs:
        return f"{name}no run is finished."
    if len(pairs) == 1:
        before, after = pairs[0]
        return f"{name}{label} {before:.3f} → {after:.3f} over 1 seed, without an interval."
    change = _describe_mean_change(f"{label} over {len(pairs)} seeds", pairs)
    return f"{name}{change} {_summarize_uplift(runs)}".strip()


def _summarize_uplift(runs: Sequence[Finished]) -> str:
    """The change of the necessity uplift over the monitored seeds."""
    pairs = []
    for _, monitor in runs:
        checkpoints = monitor["checkpoints"] if monitor else []
        estimates = [
            find_measure(checkpoint, "necessity_uplift")
            for checkpoint in checkpoints[:1] + checkpoints[-1:]
        ]
        values = [estimate["value"] for estimate in estimates if estimate]
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


def _ends(summary: Results | None) -> tuple[Results, Results]:
    """The evaluations before and after training; empty if the run is not finished, or if an
    evaluation lacks what the sentence needs."""
    before, after = ((summary or {}).get(when) for when in ("before", "after"))
    needed = {"accuracy", "problems"}
    if (
        isinstance(before, dict)
        and isinstance(after, dict)
        and needed <= before.keys() & after.keys()
    ):
        return before, after
    return {}, {}


def _shared_headline(before: Results, after: Results) -> str:
    """The headline accuracy that both evaluations have."""
    return headline_accuracy({key: before[key] for key in before if key in after})


def _estimate(scores: Results, measure: str) -> tuple[float, float, float]:
    """Value and interval. Without a stored interval it is Wilson's, as if each problem had one sample."""
    value, problems = scores[measure], scores["problems"]
    low, high = wilson_interval(value * problems, problems)
    return value, scores.get(f"{measure}_low", low), scores.get(f"{measure}_high", high)
