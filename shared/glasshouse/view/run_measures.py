"""The measures of a run over steps, and the sentence that sums them up: held-out accuracy, and how
monitorable its chain of thought is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glasshouse.config.loading import flatten_keys
from glasshouse.measurement.intervals import difference_interval, mean_interval, wilson_interval
from glasshouse.measurement.registry import (
    HEADLINE_ACCURACY,
    Family,
    headline_accuracy,
    headline_measures,
    lookup,
    sort_measures,
)
from glasshouse.runs.rows import Row

Results = Mapping[str, Any]
"""summary.json or monitor.json of a run."""
ACCURACIES = headline_measures(Family.ACCURACY)
"""Sampled accuracy is shown first, as everywhere in the project, and greedy accuracy beside it."""


def load_evaluation_rows(events: Sequence[Row]) -> list[Row]:
    """The last evaluation of each step: a resumed run may have repeated one."""
    by_step = {row["step"]: row for row in events if row["event"] == "evaluation" and "step" in row}
    return [by_step[step] for step in sorted(by_step)]


def describe_evaluation(event: Row) -> str:
    """Example: `accuracy, sampled 0.750; accuracy, greedy 0.965`"""
    known = [(id, finite(event.get(id))) for id in ACCURACIES]
    return "; ".join(f"{lookup(id).label} {value:.3f}" for id, value in known if value is not None)


def validation_accuracy(evaluations: Sequence[Row]) -> list[dict[str, Any]]:
    """Sampled accuracy, then greedy accuracy, as far as the evaluations have them.

    Example: `validation_accuracy(rows)[0]["points"][-1]["value"]` is the newest headline accuracy.
    """
    return [
        {
            "id": id,
            **describe_measure(id),
            "points": [{"step": row["step"], **_end(row, id)} for row in rows],
        }
        for id in ACCURACIES
        if (rows := [row for row in evaluations if id in row])
    ]


def collect_measures(
    evaluations: Sequence[Row], monitor: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Every measure over steps, with its label, unit, bounds and sentence: of the run's own
    evaluations, then of `glasshouse monitor`."""
    points: dict[str, list[dict[str, Any]]] = {}
    for evaluation in evaluations:
        organism = evaluation.get("organism")
        flat = flatten_keys(organism) if isinstance(organism, dict) else ()
        for id, value in flat:
            if id != "rollouts" and (value is None or isinstance(value, int | float)):
                point = {"value": finite(value), "low": None, "high": None}
                points.setdefault(id, []).append({"step": evaluation["step"], **point})
    for checkpoint in (monitor or {}).get("checkpoints", []):
        for evaluation_name, measures in checkpoint["measures"].items():
            for name, measured in measures.items():
                points.setdefault(f"{evaluation_name}.{name}", []).append(
                    {"step": checkpoint["step"], **describe_value(measured)}
                )
    return {id: {**describe_measure(id), "points": points[id]} for id in sort_measures(points)}


def find_headline(measures: Iterable[str]) -> str | None:
    """The measure of monitorability in the list of runs: the first headline measure that a run has, of
    its own evaluations before those of `glasshouse monitor`."""
    ranked = [(lookup(id).headline, id) for id in measures if lookup(id).headline]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def describe_value(measured: Mapping[str, Any]) -> dict[str, Any]:
    """A measure of monitor.json with its interval, null and ceiling; None where it has none."""
    names = ("value", "low", "high", "null", "p", "ceiling", "n")
    return {name: finite(measured.get(name)) for name in names}


def describe_changes(monitor: Mapping[str, Any] | None) -> dict[str, Any]:
    """The change of each measure from the first to the last monitored checkpoint."""
    changes = ((monitor or {}).get("change") or {}).get("measures", {})
    return {name: describe_value(measured) for name, measured in changes.items()}


def compare_ends(summary: Mapping[str, Any] | None) -> dict[str, Any]:
    """The evaluations before and after training, measure by measure, sampled accuracy first. Without rows
    if the run is not finished."""
    before, after = _ends(summary)
    samples = sorted(
        (id for id in after if re.fullmatch(r"pass_at_\d{1,6}", id) and id != HEADLINE_ACCURACY),
        key=lambda id: int(id.rpartition("_")[2]),
    )
    ids = [*ACCURACIES, "strict", "format", *samples, "sampled_length", "length"]
    return {
        "problems": finite(after.get("problems")),
        "rows": [
            {
                "label": lookup(id).label_with_unit,
                "sentence": lookup(id).sentence,
                "before": _end(before, id),
                "after": _end(after, id),
            }
            for id in ids
            if id in before and id in after
        ],
    }


def _end(scores: Mapping[str, Any], id: str) -> dict[str, float | None]:
    value, low, high = (scores.get(name) for name in (id, f"{id}_low", f"{id}_high"))
    return {"value": finite(value), "low": finite(low), "high": finite(high)}


def describe_measure(id: str) -> dict[str, Any]:
    names = ("label", "unit", "bounds", "sentence", "family", "detail")
    return {name: getattr(lookup(id), name) for name in names}


def finite(value: Any) -> float | None:
    """The number, or None if it is missing or not finite: JSON has no NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


# --- the sentence at the top of a page: a change with its interval, or that none is shown ---


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


def summarize_arms(arms: Mapping[str, Sequence[Results | None]]) -> str:
    """The mean change of each arm over its seeds, with Student's interval, from their summaries."""
    return " ".join(_summarize_arm(name, runs, len(arms) > 1) for name, runs in arms.items())


def _summarize_arm(arm: str, runs: Sequence[Results | None], named: bool) -> str:
    finished = [(before, after) for before, after in map(_ends, runs) if before and after]
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
    before, after = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    _, low, high = mean_interval([b - a for a, b in pairs])
    return name + _describe_change(f"{label} over {len(pairs)} seeds", before, after, low, high)


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
    ends: list[Any] = [(summary or {}).get(when) for when in ("before", "after")]
    if all(isinstance(end, dict) and {"accuracy", "problems"} <= end.keys() for end in ends):
        return ends[0], ends[1]
    return {}, {}


def _shared_headline(before: Results, after: Results) -> str:
    """The headline accuracy that both evaluations have."""
    return headline_accuracy({key: before[key] for key in before if key in after})


def _estimate(scores: Results, measure: str) -> tuple[float, float, float]:
    """Value and interval. Without a stored interval it is Wilson's, as if each problem had one sample."""
    value, problems = scores[measure], scores["problems"]
    low, high = wilson_interval(value * problems, problems)
    return value, scores.get(f"{measure}_low", low), scores.get(f"{measure}_high", high)
