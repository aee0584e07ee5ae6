"""The measures of a run over steps, the sentence that sums them up, and several runs compared: in which keys they
differ, which are seeds of one arm, their curves; and what a study found."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from glasshouse.config.loading import flatten_keys
from glasshouse.files import read_regular_file
from glasshouse.measurement.intervals import difference_interval, mean_interval, wilson_interval
from glasshouse.measurement.registry import (
    HEADLINE_ACCURACY,
    MEASURES,
    Family,
    headline_accuracy,
    headline_measures,
    lookup,
    sort_measures,
)
from glasshouse.runs.rows import Row
from glasshouse.tables import get_field

if TYPE_CHECKING:
    from glasshouse.view.run_reader import RunReader

Item = TypeVar("Item")
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
    """Every measure over steps, with its label, unit, bounds and sentence: of the run's own evaluations; and of
    `glasshouse monitor` or `measure`, with the change from the first to the last checkpoint."""
    points: dict[str, list[dict[str, Any]]] = {}
    for evaluation in evaluations:
        organism = evaluation.get("organism")
        flat = flatten_keys(organism) if isinstance(organism, dict) else ()
        for id, value in flat:
            if id != "rollouts" and (value is None or isinstance(value, int | float)):
                point = {"value": finite(value), "low": None, "high": None}
                points.setdefault(id, []).append({"step": evaluation["step"], **point})
    found = {id: {**describe_measure(id), "points": points[id]} for id in sort_measures(points)}
    changes = ((monitor or {}).get("change") or {}).get("measures", {})
    for checkpoint in (monitor or {}).get("checkpoints", []):
        for source, measures in checkpoint["measures"].items():
            for name, measured in measures.items():
                id = f"{source}.{name}" if source else name
                change = describe_value(changes[name]) if name in changes else None
                of_file = f"file.{name}" if not source and f"file.{name}" in MEASURES else id
                own = {**describe_measure(of_file), "points": [], "change": change}
                point = {"step": checkpoint["step"], **describe_value(measured)}
                found.setdefault(id, own)["points"].append(point)
    return {id: found[id] for id in sort_measures(found)}


def metric_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Metrics by column, with the seconds of each phase as `seconds_<phase>`; and what is known about those
    that the page draws."""
    flat = [_flatten_metrics(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    known = [id for id in sort_measures(f"train.{name}" for name in names) if lookup(id).family]
    return {
        "steps": [row["step"] for row in rows],
        "columns": {name: [row.get(name) for row in flat] for name in names},
        "measures": {id.removeprefix("train."): describe_measure(id) for id in known},
    }


def _flatten_metrics(row: Row) -> dict[str, float | None]:
    values = {
        name: finite(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float)
    }
    timing = row.get("timing")
    for name, value in timing.items() if isinstance(timing, dict) else ():
        if isinstance(value, int | float):
            values[name if "_" in name else f"seconds_{name}"] = finite(value)
    return values


def find_headline(measures: Iterable[str]) -> str | None:
    """The measure of monitorability in the list of runs: the first headline measure that a run has, of
    its own evaluations before those of `glasshouse monitor`."""
    ranked = [(lookup(id).headline, id) for id in measures if lookup(id).headline]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def describe_value(measured: Mapping[str, Any]) -> dict[str, Any]:
    """A measure of monitor.json with its interval, null and ceiling; None where it has none."""
    names = ("value", "low", "high", "null", "p", "ceiling", "n")
    return {name: finite(measured.get(name)) for name in names}


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


def thin(items: Sequence[Item], limit: int) -> list[Item]:
    """At most `limit` evenly spaced items, with the first and the last.

    Example: `thin([1, 2, 3, 4, 5], 3)` is [1, 3, 5].
    """
    if len(items) <= limit:
        return list(items)
    places = {round(place * (len(items) - 1) / (limit - 1)) for place in range(limit)}
    return [items[place] for place in sorted(places)]


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


# --- several runs ----------------------------------------------------------------------------

IGNORED_SECTIONS = (
    "seed", "out", "threads", "backend", "monarch", "hosts", "checkpoints", "rollout_log", "monitor",
    "trackers", "log_every", "diagnostics",
)  # fmt: skip
"""Keys and sections in which the runs of one arm may differ: they do not change what is learned."""
MAX_RUNS = 40


def compare_runs(readers: Sequence[RunReader]) -> dict[str, Any]:
    """Everything that the comparison shows."""
    left_out = len(readers) - MAX_RUNS
    readers = readers[:MAX_RUNS]
    flat = [dict(flatten_keys(reader.config)) for reader in readers]
    arms = group_by_arm(readers)
    by_arm: dict[str, list[Any]] = {}
    for reader, arm in zip(readers, arms, strict=True):
        by_arm.setdefault(arm, []).append(reader.summary)
    return {
        "verdict": summarize_arms(by_arm),
        "left_out": max(0, left_out),
        "runs": [
            {
                "id": reader.location.id,
                "status": reader.status,
                "seed": get_field(reader.config, "seed", 0),
                "arm": arms[number],
            }
            for number, reader in enumerate(readers)
        ],
        "differences": diff_values([r.location.id for r in readers], flat),
        "curves": compare_curves(readers, arms),
    }


def diff_values(ids: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The keys in which any two configurations differ, with each run's value."""
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = []
    for key in keys:
        values = [config.get(key) for config in configs]
        if len({json.dumps(value, sort_keys=True, default=str) for value in values}) > 1:
            rows.append({"key": key, "values": dict(zip(ids, values, strict=True))})
    # what changes the result first, then seeds and folders
    return sorted(rows, key=lambda row: row["key"].split(".")[0] in IGNORED_SECTIONS)


def group_by_arm(readers: Sequence[RunReader]) -> list[str]:
    """The name of each run's arm: its folder in a study, or the keys in which the arms differ."""
    configs = [
        {k: v for k, v in flatten_keys(r.config) if k.split(".")[0] not in IGNORED_SECTIONS}
        for r in readers
    ]
    keys = [row["key"] for row in diff_values([r.location.id for r in readers], configs)]
    # bases differ between the seeds of one arm
    named = [key for key in keys if key != "model"] or keys
    names = []
    for config, reader in zip(configs, readers, strict=True):
        texts = {
            key: "none" if config[key] in (None, {}, []) else str(config[key])
            for key in named
            if key in config
        }
        folder = reader.path.parent.name if reader.location.study else ""
        parts = ", ".join(f"{key}={text}" for key, text in texts.items())
        names.append(folder or parts or "one configuration")
    return names


def compare_curves(readers: Sequence[RunReader], arms: Sequence[str]) -> dict[str, Any]:
    """Each measure by arm: the runs' own curves, and their mean with a 95 % interval over seeds."""
    curves: dict[str, dict[str, Any]] = {}
    for reader, arm in zip(readers, arms, strict=True):
        for id, curve in run_curves(reader).items():
            points = curve.pop("points")
            by_arm = curves.setdefault(id, {**curve, "arms": {}})["arms"]
            by_arm.setdefault(arm, {"runs": []})["runs"].append(
                {"run": reader.location.id, "points": points}
            )
    for curve in curves.values():
        for arm in curve["arms"].values():
            arm["band"] = seed_band([run["points"] for run in arm["runs"]])
    return {id: curves[id] for id in headlines_first(curves)}


def headlines_first(measures: Iterable[str]) -> list[str]:
    """One measure of each headline in their order, then the others of these headlines, then the rest.

    Example: `headlines_first(["train.kl", "b.undetected_use", "c.undetected_use", "reliance"])` is
    `["b.undetected_use", "reliance", "c.undetected_use", "train.kl"]`.
    """
    seen: Counter[int] = Counter()
    ranks = {}
    for id in measures:
        headline = lookup(id).headline
        ranks[id] = (not headline, seen[headline] if headline else 0, headline)
        seen[headline] += 1
    return sorted(ranks, key=ranks.__getitem__)


def run_curves(reader: RunReader) -> dict[str, Any]:
    """The curves of one run: points are (step, value, low, high)."""
    evaluations = load_evaluation_rows(reader.events.rows)
    measures = collect_measures(evaluations, reader.monitor)
    for measure in validation_accuracy(evaluations):
        named = measure | {"label": f"held-out {measure['label']}"}
        measures = {f"evaluation.{measure['id']}": named, **measures}
    metrics = metric_columns(reader.metrics.rows)
    for id, spec in metrics["measures"].items():
        if not spec["detail"]:
            points = zip(metrics["steps"], metrics["columns"][id], strict=True)
            measures[f"train.{id}"] = {
                **spec,
                "label": f"{spec['label']}, training",
                "points": [{"step": step, "value": value} for step, value in points],
            }
    return {
        id: {
            **{name: measure[name] for name in ("label", "unit", "bounds")},
            "points": [
                (p["step"], p["value"], p.get("low"), p.get("high")) for p in measure["points"]
            ],
        }
        for id, measure in measures.items()
    }


def seed_band(curves: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[float | None, ...]]:
    """(step, mean, low, high) at the steps that every curve has; the interval needs two runs."""
    if len(curves) < 2:
        return []
    tables = [{p[0]: p[1] for p in points if p[1] is not None} for points in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    return [(step, *mean_interval([table[step] for table in tables])) for step in steps]


def load_study_results(folder: Path) -> dict[str, Any]:
    """results/study.json with the label of each measure; `problem` says why it cannot be shown."""
    try:
        return describe_study(json.loads(read_regular_file(folder / "results" / "study.json")))
    except FileNotFoundError:
        problem = (
            "This study has no analysis yet: `glasshouse study` writes it after its last run. Its runs can be "
            "compared before that."
        )
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        problem = f"results/study.json does not hold the results of a study: {error}."
    return {"problem": problem}


def describe_study(content: Mapping[str, Any]) -> dict[str, Any]:
    names = {str(item["measure"]) for item in (*content["questions"], *content.get("curves", []))}
    return {**content, "measures": {name: describe_measure(name) for name in names}, "problem": ""}
