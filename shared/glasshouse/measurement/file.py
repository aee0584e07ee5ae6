"""Measure a file of rollouts: read, score, collect, estimate, compare checkpoints over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.errors import RolloutFileError
from glasshouse.measurement.estimates import Estimate
from glasshouse.measurement.file_collecting import UNKNOWN, Cell, ScoredRollout
from glasshouse.measurement.file_measures import measure_cell
from glasshouse.measurement.file_scoring import (
    FittingRows,
    ScoredMonitor,
    check_judges,
    fit_on_rows,
)
from glasshouse.measurement.paired_seeds import PairedComparison, compare_paired, holm_correct
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.fitted import FittedKind
from glasshouse.monitors.views import Scope
from glasshouse.runs.foreign import RolloutSource
from glasshouse.runs.foreign_fields import FieldMapping
from glasshouse.runs.foreign_reasoning import parts_of
from glasshouse.types import Rollout

BATCH = 256
MAX_CELLS = 200
"""Most pairs of checkpoint and seed; TRL's table has a checkpoint per step."""

Report = Callable[[str, float], None]
"""(what is done, share that is done)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """The measures of one checkpoint and seed."""

    checkpoint: str
    seed: int
    rollouts: int
    problems: int
    """Problems with rows: all, or those of the sample."""
    is_sample: bool
    """Nulls, AUROC and g-mean² per instance come from a sample of the problems."""
    measures: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureReport:
    """What `measure` returns.

    Example: `measure("rollouts.jsonl").cells[-1].measures["reward"].measure.value`
    """

    source: str
    format: str
    """The project that wrote it, by its rows."""
    mapping: Mapping[str, str]
    """The column of each field."""
    behaviour: str
    """What the behaviour is: where its label comes from."""
    monitors: Sequence[Mapping[str, Any]]
    rollouts: int
    unanswered: int
    """Rows that are left out, because the model did not answer: the other project marks them as failed."""
    cells: Sequence[MeasuredCell]
    """By checkpoint, then seed."""
    comparisons: Mapping[str, PairedComparison]
    """Last checkpoint minus first over paired seeds, by measure id; empty with one checkpoint."""

    @property
    def checkpoints(self) -> list[str]:
        return list(dict.fromkeys(cell.checkpoint for cell in self.cells))

    def rows(self) -> list[dict[str, Any]]:
        """One row per checkpoint, seed and measure, for a data frame. `null` is the mean under the null and
        `p` its p-value; an undefined measure has no value, and a reason."""
        return [
            {
                "checkpoint": cell.checkpoint,
                "seed": cell.seed,
                "measure": name,
                "value": estimate.measure.value,
                "low": estimate.interval.low,
                "high": estimate.interval.high,
                "null": estimate.null.mean if estimate.null else None,
                "p": estimate.null.p if estimate.null else None,
                "ceiling": estimate.ceiling,
                "n": estimate.measure.n,
                "reason": estimate.measure.reason,
            }
            for cell in self.cells
            for name, estimate in cell.measures.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        cells = [
            {
                "checkpoint": cell.checkpoint,
                "seed": cell.seed,
                "rollouts": cell.rollouts,
                "problems": cell.problems,
                "is_sample": cell.is_sample,
                "measures": {name: e.as_dict() for name, e in cell.measures.items()},
            }
            for cell in self.cells
        ]
        return {
            "source": self.source,
            "format": self.format,
            "mapping": dict(self.mapping),
            "behaviour": self.behaviour,
            "monitors": list(self.monitors),
            "rollouts": self.rollouts,
            "unanswered": self.unanswered,
            "cells": cells,
            "comparisons": {name: asdict(c) for name, c in self.comparisons.items()},
        }


def measure_rollouts(
    source: Path,
    mapping: FieldMapping,
    monitors: Sequence[Monitor | FittedKind],
    *,
    steps_per_checkpoint: int = 0,
    report: Report = lambda what, share: None,
) -> MeasureReport:
    """Measure a file or folder. Fitted monitors need a first pass over it."""
    if steps_per_checkpoint < 0:
        raise RolloutFileError(
            f"--steps-per-checkpoint is {steps_per_checkpoint}; it must be positive."
        )
    opened = RolloutSource(source, mapping)
    names = [monitor.name for monitor in monitors]
    if len(set(names)) != len(names):
        raise RolloutFileError(f"Two monitors have the same name: {', '.join(names)}.")
    scored = _fit_monitors(opened, monitors, report)
    cells: dict[tuple[str, int], Cell] = {}
    rollouts = opened.rollouts(lambda share: report("measure", share))
    total = 0
    while batch := list(islice(rollouts, BATCH)):
        if not total:
            check_judges(scored, batch[0])
        outputs = [monitor.score(batch) for monitor in scored]
        for position, rollout in enumerate(batch):
            total += 1
            place = (_bin_checkpoint(rollout, steps_per_checkpoint, opened), rollout.seed)
            if place not in cells:
                if len(cells) == MAX_CELLS:
                    raise RolloutFileError(
                        f"{source} has more than {MAX_CELLS} pairs of checkpoint and seed. Merge steps with "
                        "--steps-per-checkpoint N, or ignore them with --map checkpoint=."
                    )
                cells[place] = Cell(monitors=len(scored))
            own = [column[position] for column in outputs]
            cells[place].add(to_scored(opened, rollout, own))
    if not total:
        raise RolloutFileError(f"{source} has no rollouts.")
    order = _order_checkpoints([checkpoint for checkpoint, _ in cells])
    places = sorted(cells, key=lambda place: (order.index(place[0]), place[1]))
    measured = []
    for number, place in enumerate(places):
        report("estimate", number / len(places))
        cell = cells[place]
        key = ("external", place[0], place[1])
        measured.append(
            MeasuredCell(
                checkpoint=place[0],
                seed=place[1],
                rollouts=cell.rollouts,
                problems=cell.count_problems(),
                is_sample=cell.is_sample,
                measures=measure_cell(cell, scored, key),
            )
        )
    report("estimate", 1.0)
    return MeasureReport(
        source=str(source),
        format=opened.format.name,
        mapping=opened.mapping.columns,
        behaviour=describe_behaviour(opened),
        monitors=[_describe(monitor) for monitor in scored],
        rollouts=total,
        unanswered=opened.unanswered,
        cells=measured,
        comparisons=compare_first_and_last(measured, order),
    )


def label_of(source: RolloutSource, rollout: Rollout) -> int:
    """1, 0 or UNKNOWN. Without a label or a hint in the file, the behaviour is a wrong answer."""
    if has_labels(source):
        return UNKNOWN if rollout.behaviour is None else int(rollout.behaviour)
    return UNKNOWN if rollout.grade.correct is None else int(not rollout.grade.correct)


def has_labels(source: RolloutSource) -> bool:
    return "label" in source.mapping.columns or "hint" in source.mapping.columns


def describe_behaviour(source: RolloutSource) -> str:
    columns = source.mapping.columns
    if "label" in columns:
        return f"the column {columns['label']}"
    if "hint" in columns:
        return f"the answer equals the column {columns['hint']}"
    return "a wrong answer" if "correct" in columns or "gold" in columns else ""


def to_scored(source: RolloutSource, rollout: Rollout, outputs: Sequence[Any]) -> ScoredRollout:
    has_arm = "arm" in source.mapping.columns
    correct, cot = rollout.grade.correct, parts_of(rollout.cot, rollout.text).cot
    return ScoredRollout(
        group=rollout.problem.key,
        planted=int(rollout.arm == "planted") if has_arm else UNKNOWN,
        label=label_of(source, rollout),
        correct=np.nan if correct is None else float(correct),
        reward=rollout.grade.reward,
        has_cot=float(bool(cot.strip())),
        cot_characters=float(len(cot)),
        outputs=outputs,
    )


def compare_first_and_last(
    cells: Sequence[MeasuredCell], order: Sequence[str]
) -> dict[str, PairedComparison]:
    """The last checkpoint minus the first, measure by measure, over the seeds that have both."""
    if len(order) < 2:
        return {}
    first, last = (
        {c.seed: c for c in cells if c.checkpoint == name} for name in (order[0], order[-1])
    )
    seeds = sorted(first.keys() & last.keys())
    names = list(dict.fromkeys(name for cell in cells for name in cell.measures))

    def values(side: Mapping[int, MeasuredCell], name: str) -> list[float | None]:
        return [side[seed].measures[name].measure.value for seed in seeds]

    compared = [compare_paired(values(last, name), values(first, name)) for name in names]
    return dict(zip(names, holm_correct(compared), strict=True))


def _fit_monitors(
    opened: RolloutSource, monitors: Sequence[Monitor | FittedKind], report: Report
) -> list[ScoredMonitor]:
    has_states = "activations" in opened.mapping.columns
    if not has_states and any(monitor.scope is Scope.ACTIVATIONS for monitor in monitors):
        raise RolloutFileError(
            f"{opened.path}: a probe reads hidden states. Map a column with a list of numbers, as in "
            "--map activations=hidden_state."
        )
    rows = FittingRows()
    if any(isinstance(monitor, FittedKind) for monitor in monitors):
        for rollout in opened.rollouts(lambda share: report("fit", share)):
            if (label := label_of(opened, rollout)) != UNKNOWN:
                rows.add(rollout, label)
    return [
        fit_on_rows(monitor, rows)
        if isinstance(monitor, FittedKind)
        else ScoredMonitor(name=monitor.name, monitor=monitor)
        for monitor in monitors
    ]


def _describe(monitor: ScoredMonitor) -> dict[str, Any]:
    if monitor.monitor is None:
        return {"name": monitor.name, "reason": monitor.reason}
    described = monitor.monitor.describe()
    return {name: value for name, value in described.items() if name != "weights"}


def _bin_checkpoint(rollout: Rollout, size: int, opened: RolloutSource) -> str:
    if not size:
        return rollout.checkpoint
    try:
        return str(int(float(rollout.checkpoint)) // size * size)
    except ValueError:
        raise RolloutFileError(
            f"{opened.path}, row {rollout.sample}: --steps-per-checkpoint needs numbers, but the checkpoint "
            f'is "{rollout.checkpoint}".'
        ) from None


def _order_checkpoints(names: Sequence[str]) -> list[str]:
    """Numbers in order; other names as they appear."""
    distinct = list(dict.fromkeys(names))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct
