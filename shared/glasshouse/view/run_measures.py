"""The measures of a run over steps: held-out accuracy, and how monitorable its chain of thought is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from glasshouse.config.yaml_files import flatten_keys
from glasshouse.measurement.registry import (
    HEADLINE_ACCURACY,
    Family,
    headline_accuracy,
    headline_measures,
    lookup,
    sort_measures,
)
from glasshouse.runs.rows import Row

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
    """The evaluations before and after training, measure by measure, sampled accuracy first; and the
    headline accuracy by difficulty level. Without rows if the run is not finished."""
    before, after = ((summary or {}).get(when) for when in ("before", "after"))
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {"problems": None, "rows": [], "level_label": "", "levels": []}
    samples = sorted(
        (id for id in after if re.fullmatch(r"pass_at_\d{1,6}", id) and id != HEADLINE_ACCURACY),
        key=lambda id: int(id.rpartition("_")[2]),
    )
    ids = [*ACCURACIES, "strict", "format", *samples, "sampled_length", "length"]
    levels = {
        str(level): (_mapping(before.get("levels")).get(level), rates)
        for level, rates in _mapping(after.get("levels")).items()
        if isinstance(rates, dict)
    }
    shared = [set(_mapping(rates)) for pair in levels.values() for rates in pair]
    measure = headline_accuracy(dict.fromkeys(set.intersection(*shared) if shared else ()))
    return {
        "problems": finite(after.get("problems")),
        "rows": [
            {
                "id": id,
                "label": lookup(id).label_with_unit,
                "sentence": lookup(id).sentence,
                "before": _end(before, id),
                "after": _end(after, id),
            }
            for id in ids
            if id in before and id in after
        ],
        "level_label": lookup(measure).label,
        "levels": [
            {
                "id": level,
                "label": level,
                "sentence": f"{rates.get('problems', '?')} problems",
                "before": _end(_mapping(old), measure),
                "after": _end(rates, measure),
            }
            for level, (old, rates) in levels.items()
        ]
        if len(levels) > 1
        else [],
    }


def _end(scores: Mapping[str, Any], id: str) -> dict[str, float | None]:
    value, low, high = (scores.get(name) for name in (id, f"{id}_low", f"{id}_high"))
    return {"value": finite(value), "low": finite(low), "high": finite(high)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def describe_measure(id: str) -> dict[str, Any]:
    spec = lookup(id)
    return {
        "label": spec.label,
        "unit": spec.unit,
        "bounds": spec.bounds,
        "direction": spec.direction,
        "sentence": spec.sentence,
        "family": spec.family,
        "detail": spec.detail,
    }


def finite(value: Any) -> float | None:
    """The number, or None if it is missing or not finite: JSON has no NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
