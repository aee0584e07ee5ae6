"""Group runs into arms: runs that differ only in their seed belong to the same arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glasshouse.report.run_data import RunData
from glasshouse.statistics import mean_interval

IGNORED_KEYS = {
    "seed",
    "out",
    "threads",
    "backend",
    "monarch",
    "checkpoints",
    "rollout_log",
    "monitor",
}
"""Config keys in which the runs of one arm may differ."""


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    runs: tuple[RunData, ...]


@dataclass(frozen=True, slots=True)
class SeedBand:
    """A curve over steps: the mean over seeds, with its 95 % interval if there are several."""

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def group_by_arm(runs: Sequence[RunData]) -> list[Arm]:
    """Arms in the order of their first run, named by the config keys in which they differ."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_arm_config(run), sort_keys=True), []).append(run)
    configs = [dict(_flatten(_arm_config(group[0]))) for group in groups.values()]
    first = configs[0]
    differing = [key for key in first if any(other.get(key) != first[key] for other in configs)]
    differing += sorted({key for other in configs for key in other if key not in first})
    arms = []
    for group, config in zip(groups.values(), configs, strict=True):
        name = ", ".join(f"{key}={config[key]}" for key in differing if key in config)
        arms.append(Arm(name or group[0].path.name, tuple(group)))
    return arms


def seed_band(arm: Arm, points: Callable[[RunData], Sequence[tuple[float, float]]]) -> SeedBand:
    """Average (step, value) pairs over the runs, at the steps that all of them have."""
    curves = [dict(points(run)) for run in arm.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    values = [[curve[step] for curve in curves] for step in steps]
    intervals = [mean_interval(v) if len(v) > 1 else (v[0], v[0], v[0]) for v in values]
    mean, low, high = ([interval[n] for interval in intervals] for n in range(3))
    return SeedBand([float(step) for step in steps], mean, low, high)


def _arm_config(run: RunData) -> dict[str, Any]:
    tree = run.config.model_dump(mode="json")
    return {key: value for key, value in tree.items() if key not in IGNORED_KEYS}


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
