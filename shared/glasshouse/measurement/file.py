"""Measure a file of rollouts: read, score, measure, compare checkpoints over seeds.

Of a checkpoint and seed with more than MAX_ROLLOUTS rollouts, a sample of whole problems is measured. Whether a
problem is in the sample depends on a hash of its name alone. A fitted monitor (n-grams, probe) is fitted on the
rollouts of three tenths of the problems, gets its threshold on the benign rollouts of another three tenths, and
scores the rest; the problems are divided by a hash, so that the division does not depend on the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from glasshouse import randomness
from glasshouse.errors import MonitorError, RolloutFileError
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.fitting import FittedMonitor, fit_monitor
from glasshouse.measurement.measure import measure
from glasshouse.measurement.paired_seeds import PairedComparison, compare_paired, holm_correct
from glasshouse.monitors.base import Monitor, MonitorOutput, score_all
from glasshouse.monitors.fitted import FittedKind, LabelledViews
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.monitors.views import Scope, View, view_of_parts
from glasshouse.runs.foreign import FieldMapping, RolloutSource
from glasshouse.runs.foreign_reasoning import parts_of
from glasshouse.types import Rollout
from glasshouse.values import Measure, as_floats

BATCH = 256
MAX_ROLLOUTS = 10_000
"""Most rollouts of a checkpoint and seed that are measured."""
MAX_CELLS = 200
"""Most pairs of checkpoint and seed; TRL's table has a checkpoint per step."""
FIT_TENTHS, THRESHOLD_TENTHS = 3, 3
MAX_FITTED_ROWS = 4000
"""Rollouts of each part that are kept to fit on."""
UNKNOWN = -1

FitSplit = Literal["fit", "threshold", "evaluate"]
OnProgress = Callable[[str, float], None]
"""(what is done, share that is done)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """The measures of one checkpoint and seed."""

    checkpoint: str
    seed: int
    rollouts: int
    """All, also those that are not in the sample."""
    problems: int
    """Problems that are measured: all, or those of the sample."""
    is_sample: bool
    measures: Mapping[str, Measure]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureReport:
    """What `measure` returns.

    Example: `measure("rollouts.jsonl").cells[-1].measures["reward"].value`
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
                **measured.as_dict(),
            }
            for cell in self.cells
            for name, measured in cell.measures.items()
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
                "measures": {name: m.as_dict() for name, m in cell.measures.items()},
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
    on_progress: OnProgress = lambda what, share: None,
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
    fitted = _fit_monitors(opened, monitors, on_progress)
    cells: dict[tuple[str, int], Cell] = {}
    rollouts = opened.rollouts(lambda share: on_progress("measure", share))
    total = 0
    while batch := list(islice(rollouts, BATCH)):
        if not total:
            _check_judges(fitted, batch[0])
        total += len(batch)
        kept: list[tuple[Cell, Rollout]] = []
        for rollout in batch:
            place = (_bin_checkpoint(rollout, steps_per_checkpoint, opened), rollout.seed)
            if place not in cells and len(cells) == MAX_CELLS:
                raise RolloutFileError(
                    f"{source} has more than {MAX_CELLS} pairs of checkpoint and seed. Merge steps with "
                    "--steps-per-checkpoint N, or ignore them with --map checkpoint=."
                )
            cell = cells.setdefault(place, Cell())
            if cell.takes(rollout.problem.key):
                kept.append((cell, rollout))
        outputs = [_score(monitor, [rollout for _, rollout in kept]) for monitor in fitted]
        for position, (cell, rollout) in enumerate(kept):
            cell.add(_row_of(opened, rollout, [column[position] for column in outputs]))
    if not total:
        raise RolloutFileError(f"{source} has no rollouts.")
    order = _order_checkpoints([checkpoint for checkpoint, _ in cells])
    places = sorted(cells, key=lambda place: (order.index(place[0]), place[1]))
    measured = []
    for number, place in enumerate(places):
        on_progress("estimate", number / len(places))
        measured.append(measure_cell(cells[place], place, fitted))
    on_progress("estimate", 1.0)
    return MeasureReport(
        source=str(source),
        format=opened.format.name,
        mapping=opened.mapping.columns,
        behaviour=describe_behaviour(opened),
        monitors=[_describe(monitor) for monitor in fitted],
        rollouts=total,
        unanswered=opened.unanswered,
        cells=measured,
        comparisons=compare_first_and_last(measured, order),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """What the measures need of one rollout; NaN or UNKNOWN where the file does not say it."""

    problem: int
    """A hash of its name."""
    planted: bool
    label: int
    correct: float
    reward: float
    has_cot: float
    cot_characters: float
    outputs: Sequence[MonitorOutput]
    """One per monitor."""


@dataclass(slots=True)
class Cell:
    """The rollouts of one checkpoint and seed, or a sample of its problems."""

    rollouts: int = 0
    limit: int = 2**64
    """Problems whose hash is below this are kept."""
    rows: list[CellRow] = field(default_factory=list)

    def takes(self, problem: str) -> bool:
        """Count a rollout; is its problem in the sample?"""
        self.rollouts += 1
        return hash_problem(problem) < self.limit

    def add(self, row: CellRow) -> None:
        """Keep a row. If there are too many, the half of the problems with the smaller hashes stays; of a
        single problem, the rows so far."""
        if row.problem >= self.limit:  # it was in the sample before this batch
            return
        self.rows.append(row)
        if len(self.rows) > MAX_ROLLOUTS:
            problems = sorted({row.problem for row in self.rows})
            self.limit = problems[len(problems) // 2] if len(problems) > 1 else 0
            self.rows = [row for row in self.rows if row.problem < self.limit] or self.rows


def hash_problem(name: str) -> int:
    return randomness.key("external problem", name)


def measure_cell(
    cell: Cell, place: tuple[str, int], monitors: Sequence[FittedMonitor]
) -> MeasuredCell:
    """The measures of one checkpoint and seed."""
    rows, key = cell.rows, ("external", *place)
    labels = np.array([row.label for row in rows])
    columns = Columns(
        problems=np.array([row.problem for row in rows], dtype=np.uint64),
        planted=np.array([row.planted for row in rows], dtype=bool),
        behaviour=labels == 1,
        has_labels=bool((labels != UNKNOWN).all()),
        correct=as_floats(row.correct for row in rows),
        reward=as_floats(row.reward for row in rows),
        has_cot=as_floats(row.has_cot for row in rows),
        cot_characters=as_floats(row.cot_characters for row in rows),
        stream=(*key, "monitor"),
    )
    scores = [
        Scores(monitor=fitted.name, reason=fitted.reason)
        if fitted.monitor is None
        else Scores.from_outputs(
            fitted.name,
            [row.outputs[number] for row in rows],
            no_threshold=fitted.no_threshold,
        )
        for number, fitted in enumerate(monitors)
    ]
    return MeasuredCell(
        checkpoint=place[0],
        seed=place[1],
        rollouts=cell.rollouts,
        problems=len({row.problem for row in rows}),
        is_sample=cell.limit < 2**64,
        measures=measure(columns, "file", scores, key=key),
    )


def label_of(source: RolloutSource, rollout: Rollout) -> int:
    """1, 0 or UNKNOWN. Without a label or a hint in the file, the behaviour is a wrong answer."""
    if "label" in source.mapping.columns or "hint" in source.mapping.columns:
        return UNKNOWN if rollout.behaviour is None else int(rollout.behaviour)
    return UNKNOWN if rollout.grade.correct is None else int(not rollout.grade.correct)


def describe_behaviour(source: RolloutSource) -> str:
    columns = source.mapping.columns
    if "label" in columns:
        return f"the column {columns['label']}"
    if "hint" in columns:
        return f"the answer equals the column {columns['hint']}"
    return "a wrong answer" if "correct" in columns or "gold" in columns else ""


def _row_of(source: RolloutSource, rollout: Rollout, outputs: Sequence[MonitorOutput]) -> CellRow:
    correct, cot = rollout.grade.correct, parts_of(rollout.cot, rollout.text).cot
    return CellRow(
        problem=hash_problem(rollout.problem.key),
        planted="arm" not in source.mapping.columns or rollout.arm == "planted",
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
        return [side[seed].measures[name].value for seed in seeds]

    compared = [compare_paired(values(last, name), values(first, name)) for name in names]
    return dict(zip(names, holm_correct(compared), strict=True))


def part_of(group: str) -> FitSplit:
    """What the rollouts of a problem are used for, if a monitor is fitted."""
    tenth = randomness.key("external part", group) % 10
    if tenth < FIT_TENTHS:
        return "fit"
    return "threshold" if tenth < FIT_TENTHS + THRESHOLD_TENTHS else "evaluate"


def _fit_monitors(
    opened: RolloutSource, monitors: Sequence[Monitor | FittedKind], on_progress: OnProgress
) -> list[FittedMonitor]:
    has_states = "activations" in opened.mapping.columns
    if not has_states and any(monitor.scope is Scope.ACTIVATIONS for monitor in monitors):
        raise RolloutFileError(
            f"{opened.path}: a probe reads hidden states. Map a column with a list of numbers, as in "
            "--map activations=hidden_state."
        )
    parts: dict[FitSplit, list[tuple[Rollout, int]]] = {"fit": [], "threshold": []}
    if any(isinstance(monitor, FittedKind) for monitor in monitors):
        for rollout in opened.rollouts(lambda share: on_progress("fit", share)):
            label, part = label_of(opened, rollout), part_of(rollout.problem.key)
            rows = parts.get(part)
            is_useful = label != UNKNOWN and (part == "fit" or not label)  # a threshold is benign
            if rows is not None and is_useful and len(rows) < MAX_FITTED_ROWS:
                rows.append((rollout, label))
    return [
        fit_monitor(
            monitor,
            _labelled(monitor.scope, parts["fit"]),
            _labelled(monitor.scope, parts["threshold"]),
        )
        if isinstance(monitor, FittedKind)
        else FittedMonitor(name=monitor.name, monitor=monitor)
        for monitor in monitors
    ]


def _score(fitted: FittedMonitor, rollouts: Sequence[Rollout]) -> list[MonitorOutput]:
    """The output for each rollout; a fitted monitor gives none for the problems it has seen."""
    if fitted.monitor is None:
        return [MonitorOutput.failure(fitted.reason)] * len(rollouts)
    views = [_view(fitted.monitor.scope, rollout) for rollout in rollouts]
    outputs = score_all(fitted.monitor, views)
    if not fitted.is_fitted:
        return outputs
    seen = MonitorOutput.failure("the monitor was fitted on this problem")
    return [
        output if part_of(rollout.problem.key) == "evaluate" else seen
        for rollout, output in zip(rollouts, outputs, strict=True)
    ]


def _check_judges(monitors: Iterable[FittedMonitor], first: Rollout) -> None:
    """Raise if a judge has no verdict on the first rollout: one that cannot be reached, or refuses the key,
    would be asked about all the others, with retries."""
    for fitted in monitors:
        if isinstance(fitted.monitor, JudgeMonitor):
            (output,) = _score(fitted, [first])
            if output.failed:
                raise MonitorError(
                    f'The judge "{fitted.name}" gave no verdict on the first rollout: {output.reason}'
                )


def _view(scope: Scope, rollout: Rollout) -> View:
    cot, answer = parts_of(rollout.cot, rollout.text)
    parts = {"prompt": rollout.prompt, "question": rollout.prompt, "cot": cot, "answer": answer}
    state = None if rollout.activations is None else np.array(rollout.activations)
    return view_of_parts(scope, parts, state)


def _labelled(scope: Scope, rows: Sequence[tuple[Rollout, int]]) -> LabelledViews:
    views = [_view(scope, rollout) for rollout, _ in rows]
    labels, problems = [label for _, label in rows], [rollout.problem.key for rollout, _ in rows]
    return LabelledViews(views, labels, problems)


def _describe(monitor: FittedMonitor) -> dict[str, Any]:
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
