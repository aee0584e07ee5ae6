"""Measure a file of rollouts: read, score, collect, estimate, compare checkpoints over seeds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse import randomness
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
from glasshouse.runs.foreign_fields import FIELDS, MISSING, ExternalRollout, FieldMapping
from glasshouse.runs.foreign_formats import RolloutFormat, detect_format
from glasshouse.runs.foreign_reading import iter_rows
from glasshouse.tasks.answers.equality import answers_match, parse_number
from glasshouse.tasks.answers.extraction import extract_answer
from glasshouse.types import AnswerKind

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
    opened = OpenedSource(source, mapping)
    names = [monitor.name for monitor in monitors]
    if len(set(names)) != len(names):
        raise RolloutFileError(f"Two monitors have the same name: {', '.join(names)}.")
    scored = _fit_monitors(opened, monitors, report)
    cells: dict[tuple[str, int], Cell] = {}
    ids = array("Q")
    rollouts = opened.iter_rollouts(lambda share: report("measure", share))
    total = 0
    while batch := list(islice(rollouts, BATCH)):
        if not total:
            check_judges(scored, batch[0])
        outputs = [monitor.score(batch) for monitor in scored]
        for position, rollout in enumerate(batch):
            total += 1
            if rollout.id is not None:
                ids.append(randomness.key("external id", rollout.id))
            place = (_bin_checkpoint(rollout, steps_per_checkpoint, opened), rollout.seed)
            if place not in cells:
                if len(cells) == MAX_CELLS:
                    raise RolloutFileError(
                        f"{source} has more than {MAX_CELLS} pairs of checkpoint and seed. Merge steps with "
                        "--steps-per-checkpoint N, or ignore them with --map checkpoint=."
                    )
                cells[place] = Cell(monitors=len(scored))
            own = [column[position] for column in outputs]
            cells[place].add(opened.to_scored(rollout, own))
    if not total:
        raise RolloutFileError(f"{source} has no rollouts.")
    _check_ids(ids, source, opened)
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
        behaviour=opened.behaviour,
        monitors=[_describe(monitor) for monitor in scored],
        rollouts=total,
        unanswered=opened.unanswered,
        cells=measured,
        comparisons=compare_first_and_last(measured, order),
    )


class OpenedSource:
    """A source with its format and mapping, both determined by its first row."""

    def __init__(self, source: Path, mapping: FieldMapping) -> None:
        self.source = source
        self.unanswered = 0
        first = next(iter_rows(source), None)
        if first is None:
            raise RolloutFileError(f"{source} has no rows.")
        self.format: RolloutFormat = detect_format(first)
        expanded = next(self._iter_expanded(lambda share: None), None)
        if expanded is None:
            raise RolloutFileError(f"{source} has no rollout in which the model answered.")
        merged = mapping.over(self.format.mapping(expanded))
        columns = {name: column for name, column in merged.columns.items() if column}
        self.mapping = FieldMapping(
            columns=columns,
            planted=mapping.planted,
            control=mapping.control,
            ignored=tuple(
                name
                for name in FIELDS
                if name not in merged.columns and expanded.get(name, MISSING) is None
            ),
        )
        self.mapping.check(expanded, str(source))
        self.behaviour = self._describe_behaviour()

    def iter_rollouts(self, report: Callable[[float], None]) -> Iterator[ExternalRollout]:
        for number, row in enumerate(self._iter_expanded(report), 1):
            yield self.mapping.read(row, number, str(self.source))

    def _iter_expanded(self, report: Callable[[float], None]) -> Iterator[Mapping[str, Any]]:
        self.unanswered = 0
        for number, row in enumerate(iter_rows(self.source, report), 1):
            try:
                rollouts = list(self.format.expand(row))
                self.unanswered += not rollouts
                yield from rollouts
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise RolloutFileError(
                    f"{self.source}, row {number}: this is not a row of {self.format.name}: "
                    f"{type(error).__name__}: {error}."
                ) from None

    def _describe_behaviour(self) -> str:
        columns = self.mapping.columns
        if "label" in columns:
            return f"the column {columns['label']}"
        if "hint" in columns:
            return f"the answer equals the column {columns['hint']}"
        if "correct" in columns or "gold" in columns:
            return "a wrong answer"
        return ""

    def label_of(self, rollout: ExternalRollout) -> int:
        """1, 0 or UNKNOWN."""
        if rollout.label is not None:
            return rollout.label
        if rollout.hint is not None:
            return int(equals(rollout.answer, rollout.hint))
        correct = self.is_correct(rollout)
        return UNKNOWN if correct is None else 1 - correct

    def is_correct(self, rollout: ExternalRollout) -> int | None:
        if rollout.correct is not None:
            return rollout.correct
        return None if rollout.gold is None else int(equals(rollout.answer, rollout.gold))

    def to_scored(self, rollout: ExternalRollout, outputs: Sequence[Any]) -> ScoredRollout:
        correct = self.is_correct(rollout)
        return ScoredRollout(
            group=rollout.group,
            planted=UNKNOWN if rollout.planted is None else rollout.planted,
            label=self.label_of(rollout),
            correct=np.nan if correct is None else float(correct),
            reward=np.nan if rollout.reward is None else rollout.reward,
            has_cot=float(bool(rollout.cot.strip())),
            cot_characters=float(len(rollout.cot)),
            outputs=outputs,
        )


def equals(answer: str, expected: str) -> bool:
    """Does an answer give this value? Numbers are compared as numbers, anything else as text."""
    kind = AnswerKind.NUMBER if parse_number(expected) is not None else AnswerKind.TEXT
    found = extract_answer(answer, kind).model_answer
    return answers_match(found, expected, kind)


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
    opened: OpenedSource, monitors: Sequence[Monitor | FittedKind], report: Report
) -> list[ScoredMonitor]:
    has_states = "activations" in opened.mapping.columns
    if not has_states and any(monitor.scope is Scope.ACTIVATIONS for monitor in monitors):
        raise RolloutFileError(
            f"{opened.source}: a probe reads hidden states. Map a column with a list of numbers, as in "
            "--map activations=hidden_state."
        )
    rows = FittingRows()
    if any(isinstance(monitor, FittedKind) for monitor in monitors):
        for rollout in opened.iter_rollouts(lambda share: report("fit", share)):
            if (label := opened.label_of(rollout)) != UNKNOWN:
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


def _bin_checkpoint(rollout: ExternalRollout, size: int, opened: OpenedSource) -> str:
    if not size:
        return rollout.checkpoint
    try:
        return str(int(float(rollout.checkpoint)) // size * size)
    except ValueError:
        raise RolloutFileError(
            f"{opened.source}, row {rollout.row}: --steps-per-checkpoint needs numbers, but the checkpoint "
            f'is "{rollout.checkpoint}".'
        ) from None


def _order_checkpoints(names: Sequence[str]) -> list[str]:
    """Numbers in order; other names as they appear."""
    distinct = list(dict.fromkeys(names))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct


def _check_ids(ids: array[int], source: Path, opened: OpenedSource) -> None:
    """Raise if an id repeats: 8 bytes per rollout, the only thing that grows with the file."""
    if len(ids) < 2:
        return
    hashed = np.frombuffer(ids, dtype=np.uint64)
    order = np.argsort(hashed, kind="stable")
    repeats = np.flatnonzero(hashed[order][1:] == hashed[order][:-1])
    if len(repeats):
        second, first = (int(row) + 1 for row in (order[repeats[0] + 1], order[repeats[0]]))
        raise RolloutFileError(
            f'{source}, row {second}, column "{opened.mapping.columns["id"]}": this id is also that of row '
            f"{first}. Each rollout is measured once: remove duplicates, or do not map id."
        )
