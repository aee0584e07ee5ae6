"""Several runs as arms and seeds: runs that differ by nothing but their seed are one arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glasshouse.report.run_data import Gathered
from glasshouse.statistics import mean_interval

NOT_THE_ARM = {
    "seed",
    "out",
    "threads",
    "backend",
    "monarch",
    "checkpoints",
    "rollout_log",
    "monitor",
}
"""Keys that do not tell arms apart."""


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    runs: tuple[Gathered, ...]

    @property
    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]


@dataclass(frozen=True, slots=True)
class Band:
    """A curve over steps: the mean over seeds, and its 95 % interval where there are several."""

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def arms(runs: Sequence[Gathered]) -> list[Arm]:
    """In the order in which they were given; named by the keys in which they differ."""
    groups: dict[str, list[Gathered]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_identity(run), sort_keys=True), []).append(run)
    found = [tuple(group) for group in groups.values()]
    leaves = [dict(_leaves(_identity(group[0]), "")) for group in found]
    differing = [k for k in leaves[0] if any(other.get(k) != leaves[0][k] for other in leaves)]
    differing += sorted({k for other in leaves for k in other if k not in leaves[0]})
    made = []
    for group, values in zip(found, leaves, strict=True):
        told = ", ".join(f"{key}={values[key]}" for key in differing if key in values)
        made.append(Arm(told or group[0].path.name, group))
    return made


def band(arm: Arm, points: Callable[[Gathered], Sequence[tuple[float, float]]]) -> Band:
    """`points` gives a run's (step, value) pairs; only steps that all seeds have are averaged."""
    curves = [dict(points(run)) for run in arm.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    values = [[curve[step] for curve in curves] for step in steps]
    intervals = [mean_interval(v) if len(v) > 1 else (v[0], v[0], v[0]) for v in values]
    mean, low, high = ([i[n] for i in intervals] for n in range(3))
    return Band([float(s) for s in steps], mean, low, high)


def _identity(run: Gathered) -> dict[str, Any]:
    tree = run.config.model_dump(mode="json")
    return {key: value for key, value in tree.items() if key not in NOT_THE_ARM}


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
