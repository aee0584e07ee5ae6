"""Several runs compared: in which keys they differ, which are seeds of one arm, their curves; and what a study
found."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.config.loading import flatten_keys, read_yaml_file
from glasshouse.errors import GlasshouseError
from glasshouse.files import read_regular_file
from glasshouse.measurement.intervals import mean_interval
from glasshouse.measurement.registry import Family, lookup
from glasshouse.tables import get_field
from glasshouse.terminal import count_noun
from glasshouse.view.run_measures import describe_measure, format_estimate, metric_columns
from glasshouse.view.run_reader import RunReader

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
    curves = compare_curves(readers, arms)
    return {
        "verdict": " ".join(summarize_arms(curves, len(set(arms)))),
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
        "curves": curves,
    }


def summarize_arms(curves: Mapping[str, Mapping[str, Any]], arms: int) -> Iterator[str]:
    """The last values of each arm with their intervals: of the first measure of monitorability and the first accuracy
    that all arms have."""
    shared = [
        id for id, curve in curves.items() if lookup(id).headline and len(curve["arms"]) == arms
    ]
    is_accuracy = {id: lookup(id).family == Family.ACCURACY for id in shared}
    for kind in (False, True):
        for id in [id for id in shared if is_accuracy[id] is kind][:1]:
            curve = curves[id]
            ends = [
                _describe_end(name, arm, curve["bounds"]) for name, arm in curve["arms"].items()
            ]
            yield f"{curve['label'][0].upper()}{curve['label'][1:]}: {', '.join(ends)}."
    if shared:
        yield "95 % intervals are over seeds if an arm has several runs, else over problems."


def _describe_end(name: str, arm: Mapping[str, Any], bounds: tuple[float, float] | None) -> str:
    """Example: `0.120 (0.03 to 0.22) in outcome (2 seeds)`"""
    points = [p for p in arm["band"] or arm["runs"][0]["points"] if p[1] is not None]
    if not points:
        return f"undefined in {name}"
    value, low, high = points[-1][1:]
    if bounds and low is not None and high is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    seeds = f" ({count_noun(len(arm['runs']), 'seed')})" if arm["band"] else ""
    return f"{format_estimate(value, low, high)} in {name}{seeds}"


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
    """The name of each run's arm: its folder in a study, also if only the folder of its runs is given, or the keys in
    which the arms differ."""
    are_of_study = len({reader.path.resolve().parent.parent for reader in readers}) == 1 and all(
        re.fullmatch(r"seed-\d+", reader.path.name) for reader in readers
    )
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
        is_named = reader.location.study or are_of_study
        folder = reader.path.resolve().parent.name if is_named else ""
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
    """One measure of each headline in their order, accuracies last; then the others of these headlines, then the
    rest.

    Example: `headlines_first(["train.kl", "pass_at_1", "b.undetected_use", "c.undetected_use", "reliance"])` is
    `["b.undetected_use", "reliance", "pass_at_1", "c.undetected_use", "train.kl"]`.
    """
    seen: Counter[int] = Counter()
    ranks = {}
    for id in measures:
        headline, is_accuracy = lookup(id).headline, lookup(id).family == Family.ACCURACY
        ranks[id] = (not headline, seen[headline] if headline else 0, is_accuracy, headline)
        seen[headline] += 1
    return sorted(ranks, key=ranks.__getitem__)


def run_curves(reader: RunReader) -> dict[str, Any]:
    """The curves of one run: points are (step, value, low, high)."""
    measures = reader.measures()
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
            **{name: measure[name] for name in ("label", "unit", "bounds", "sentence")},
            "points": [
                (p["step"], p["value"], p.get("low"), p.get("high")) for p in measure["points"]
            ],
        }
        for id, measure in measures.items()
        if measure["family"]
    }


def seed_band(curves: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[float | None, ...]]:
    """(step, mean, low, high) at the steps that every curve has; the interval needs two runs."""
    if len(curves) < 2:
        return []
    tables = [{p[0]: p[1] for p in points if p[1] is not None} for points in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    return [(step, *mean_interval([table[step] for table in tables])) for step in steps]


def load_study_results(folder: Path) -> dict[str, Any]:
    """results/study.json, or of a published study study.json, with the label of each measure; without it, `problem`
    says why, and title and introduction are those of the study file."""
    results = folder / "results" if (folder / "results").is_dir() else folder
    try:
        return describe_study(json.loads(read_regular_file(results / "study.json")))
    except FileNotFoundError:
        problem = "This study has no verdicts: glasshouse study writes them after its last run, from two seeds on."
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        problem = f"results/study.json does not hold the results of a study: {error}."
    try:
        study = read_yaml_file(folder / "study.yaml")
    except GlasshouseError:
        study = {}
    named = {name: str(study.get(name, "")) for name in ("title", "about")}
    return {**named, "problem": problem, "arms": [str(arm) for arm in study.get("arms") or ()]}


def describe_study(content: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a study with its curves in the form of `compare_curves`."""
    curves: dict[str, dict[str, Any]] = {}
    for curve in content.get("curves", []):
        id = str(curve["measure"])
        arms = curves.setdefault(id, {**describe_measure(id), "arms": {}})["arms"]
        points = zip(*(curve[name] for name in ("steps", "mean", "low", "high")), strict=True)
        arms[curve["arm"]] = {"runs": [], "band": list(points)}
    return {**content, "curves": curves, "problem": ""}
