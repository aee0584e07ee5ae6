"""Several runs: in which keys their configurations differ, which are seeds of one arm, their curves;
and what a study found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.config.loading import flatten_keys
from glasshouse.files import read_regular_file
from glasshouse.measurement.intervals import mean_interval
from glasshouse.measurement.registry import lookup
from glasshouse.runs.run_directory import config_value
from glasshouse.view.run_measures import (
    collect_measures,
    describe_measure,
    load_evaluation_rows,
    summarize_arms,
    validation_accuracy,
)
from glasshouse.view.run_reader import RunReader, metric_columns

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
                "seed": config_value(reader.config, "seed", 0),
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
        content = json.loads(read_regular_file(folder / "results" / "study.json"))
        questions, curves = content["questions"], content.get("curves", [])
        names = {str(item["measure"]) for item in (*questions, *curves)}
    except FileNotFoundError:
        return {
            "problem": "This study has no analysis yet: `glasshouse study` writes it after its last run. "
            "Its runs can be compared before that."
        }
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        return {"problem": f"results/study.json does not hold the results of a study: {error}."}
    return {**content, "measures": {name: describe_measure(name) for name in names}, "problem": ""}
