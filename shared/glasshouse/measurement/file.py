"""Measure rollouts of any trainer: read, score, measure, compare checkpoints over seeds.

Of a checkpoint and seed with more than MAX_ROLLOUTS rollouts, a sample of whole problems is measured. A fitted monitor
(n-grams, probe) is fitted on the rollouts of three tenths of the problems, gets its threshold on the benign rollouts of
another three tenths, and scores the rest. Hashes of the problems' names decide both, not the order of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from glasshouse import randomness
from glasshouse.errors import MonitorError, RolloutFileError, import_extra
from glasshouse.measurement import measure as measuring
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.intervals import PairedComparison, compare_paired, holm_correct
from glasshouse.measurement.reading import Reading, explain_unread
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.resampling import Key
from glasshouse.monitors.base import (
    Monitor,
    MonitorOutput,
    Scope,
    View,
    check_monitor,
    mean_cost,
    score_all,
    view_of_parts,
)
from glasshouse.monitors.factory import parse_monitor
from glasshouse.monitors.fitted import (
    FIT,
    FITTING,
    THRESHOLD,
    FittedKind,
    FittedMonitor,
    LabelledViews,
    fit_monitor,
)
from glasshouse.runs.foreign import FieldMapping, RolloutSource
from glasshouse.runs.foreign_formats import parts_of
from glasshouse.terminal import count_noun, make_console, show_status
from glasshouse.types import Rollout
from glasshouse.values import Measure, as_floats, undefined_measure

if TYPE_CHECKING:
    from rich.console import Console

BATCH = 256
MAX_ROLLOUTS = 10_000
"""Most rollouts of a checkpoint and seed that are measured."""
MAX_CELLS = 200
"""Most pairs of checkpoint and seed; TRL's table has a checkpoint per step."""
FIT_TENTHS, THRESHOLD_TENTHS = 3, 3
MAX_FITTED_ROWS = 4000
"""Rollouts of each part that are kept to fit on."""
WRONG_ANSWER = "a wrong answer"
"""The behaviour of a file that says of no other one."""

WAYS = ("--answer-kind KIND", "--allow-unread")


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
    reading: Reading
    """The unread answers and cut completions of all rollouts."""


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
    changes: Mapping[str, Measure]
    """Last checkpoint minus first of the only run, with intervals over problems; empty with several seeds."""

    @property
    def reading(self) -> Reading:
        """The unread answers and cut completions of all cells."""
        total = Reading()
        for cell in self.cells:
            total.merge(cell.reading)
        return total

    @property
    def checkpoints(self) -> list[str]:
        return list(dict.fromkeys(cell.checkpoint for cell in self.cells))

    def rows(self) -> list[dict[str, Any]]:
        """One row per checkpoint, seed and measure, for a data frame. `null` is the mean under the null and
        `p` its p-value; an undefined measure has no value, and a reason."""
        return [
            {"checkpoint": cell.checkpoint, "seed": cell.seed, "measure": name, **own.as_dict()}
            for cell in self.cells
            for name, own in cell.measures.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        result = asdict(self)
        for cell, measured in zip(result["cells"], self.cells, strict=True):
            cell["measures"] = {name: own.as_dict() for name, own in measured.measures.items()}
        return result


class RolloutFile:
    """A file or folder of rollouts, or a run directory, with the monitors that score it: `glasshouse measure` and the
    page read rollouts through this. What is wrong with the arguments or the first row is raised at once.

    Example: `RolloutFile("rollouts.jsonl", {"label": "hacked"}, monitors=["rule:hint=(?i)hint"]).measure()`
    """

    def __init__(
        self,
        rollouts: str | Path,
        map: Mapping[str, str] | Sequence[str] = (),
        *,
        monitors: Sequence[Monitor | str] | str = (),
        planted: str = "",
        control: str = "",
        steps_per_checkpoint: int = 0,
        answer_kind: str = "",
        allow_unread: bool = False,
    ) -> None:
        mapping = FieldMapping.parse([map] if isinstance(map, str) else map, planted, control)
        if steps_per_checkpoint < 0:
            raise RolloutFileError(
                f"--steps-per-checkpoint is {steps_per_checkpoint}; it must be positive."
            )
        listed = [monitors] if isinstance(monitors, str) else monitors
        self.monitors = [
            parse_monitor(m) if isinstance(m, str) else _check_given(m) for m in listed
        ]
        names = [monitor.name for monitor in self.monitors]
        if len(set(names)) != len(names):
            raise RolloutFileError(f"Two monitors have the same name: {', '.join(names)}.")
        if any(isinstance(monitor, FittedKind) for monitor in self.monitors):
            import_extra("monitor", FITTING, "sklearn.linear_model", error=MonitorError)
        self.source = RolloutSource(Path(rollouts), mapping, answer_kind)
        self.steps_per_checkpoint, self.allow_unread = steps_per_checkpoint, allow_unread
        self.show: Callable[[str], None] = lambda text: None
        """Tells how far it is."""

    @cached_property
    def fitted(self) -> list[FittedMonitor]:
        """The monitors; those that are fitted need a first pass over the file."""
        source = self.source
        needs_states = any(monitor.scope is Scope.ACTIVATIONS for monitor in self.monitors)
        if needs_states and "activations" not in source.mapping.columns:
            raise RolloutFileError(
                f"{source.path}: a probe reads hidden states. Map a column with a list of numbers, as in "
                "--map activations=hidden_state."
            )
        parts: dict[str, list[tuple[Rollout, int]]] = {FIT: [], THRESHOLD: [], "evaluate": []}
        if any(isinstance(monitor, FittedKind) for monitor in self.monitors):
            for rollout in source.rollouts(lambda share: self.show(f"fit {share:.0%}")):
                label, part = self.label_of(rollout), part_of(rollout.problem.key)
                is_useful = part == FIT or (part == THRESHOLD and not label)  # only benign ones
                if is_useful and not np.isnan(label) and len(parts[part]) < MAX_FITTED_ROWS:
                    parts[part].append((rollout, int(label)))
        return [
            fit_monitor(m, _views(m.scope, parts[FIT]), _views(m.scope, parts[THRESHOLD]))
            if isinstance(m, FittedKind)
            else FittedMonitor(name=m.name, monitor=m)
            for m in self.monitors
        ]

    def score(self, rollouts: Sequence[Rollout]) -> list[list[MonitorOutput]]:
        """The outputs of each monitor for these rollouts."""
        return [_score(monitor, rollouts) for monitor in self.fitted]

    def label_of(self, rollout: Rollout) -> float:
        """1, 0 or NaN. Without a label or a hint in the file, the behaviour is a wrong answer."""
        if self.source.mapping.columns.keys() & {"label", "hint"}:
            return np.nan if rollout.behaviour is None else float(rollout.behaviour)
        return np.nan if rollout.grade.correct is None else float(not rollout.grade.correct)

    def describe_behaviour(self) -> str:
        columns = self.source.mapping.columns
        if self.source.has_human_labels:
            count = count_noun(len(self.source.labels), "rollout")
            return f"what a person said of {count} on the page"
        if "label" in columns:
            return f"the column {columns['label']}"
        if "hint" in columns:
            return f"the answer equals the column {columns['hint']}"
        return WRONG_ANSWER if "correct" in columns or "gold" in columns else ""

    def measure(self) -> MeasureReport:
        """Measure each checkpoint and seed."""
        source, cells = self.source, self._read_cells()
        order = _order_checkpoints([checkpoint for checkpoint, _ in cells])
        places = sorted(cells, key=lambda place: (order.index(place[0]), place[1]))
        measured: list[MeasuredCell] = []
        for place in places:
            self.show(f"estimate {len(measured) / len(places):.0%}")
            measured.append(self._measure_cell(cells[place], place))
        changes: dict[str, Measure] = {}
        if len(order) > 1 and len({seed for _, seed in places}) == 1:
            known = {name for name, own in measured[-1].measures.items() if own.value is not None}
            ends = [cells[places[end]] for end in (0, -1)]
            for chosen in [ends, [_labelled(cell) for cell in ends]][: 1 + source.has_human_labels]:
                first, last = map(self._collect_columns, chosen)
                found = measuring.measure_change(first, last, "file", key=("external",))
                changes |= {
                    name: own for name, own in found.items() if name in known - changes.keys()
                }
        return MeasureReport(
            source=str(source.path),
            format=source.format.name,
            mapping=dict(source.mapping.columns),
            behaviour=self.describe_behaviour(),
            monitors=[
                _describe(m, (row.outputs[n] for cell in cells.values() for row in cell.rows))
                for n, m in enumerate(self.fitted)
            ],
            rollouts=sum(cell.rollouts for cell in cells.values()),
            unanswered=source.unanswered,
            cells=measured,
            comparisons=compare_first_and_last(measured, order),
            changes=changes,
        )

    def _read_cells(self) -> dict[tuple[str, int], Cell]:
        """Read and score the rollouts, by checkpoint and seed."""
        cells: dict[tuple[str, int], Cell] = {}
        rollouts = self.source.rollouts(lambda share: self.show(f"measure {share:.0%}"))
        while batch := list(islice(rollouts, BATCH)):
            kept: list[tuple[Cell, Rollout]] = []
            for rollout in batch:
                place = (self._bin_checkpoint(rollout), rollout.seed)
                if place not in cells and len(cells) == MAX_CELLS:
                    raise RolloutFileError(
                        f"{self.source.path} has more than {MAX_CELLS} pairs of checkpoint and seed. Merge steps "
                        "with --steps-per-checkpoint N, or ignore them with --map checkpoint=."
                    )
                cell = cells.setdefault(place, Cell())
                if cell.takes(rollout):
                    kept.append((cell, rollout))
            outputs = self.score([rollout for _, rollout in kept])
            for position, (cell, rollout) in enumerate(kept):
                cell.add(self._row_of(rollout, [column[position] for column in outputs]))
        if not cells:
            raise RolloutFileError(f"{self.source.path} has no rollouts.")
        return cells

    def _row_of(self, rollout: Rollout, outputs: Sequence[MonitorOutput]) -> CellRow:
        correct, cot = rollout.grade.correct, parts_of(rollout.cot, rollout.text).cot
        return CellRow(
            problems=hash_problem(rollout.problem.key),
            planted="arm" not in self.source.mapping.columns or rollout.arm == "planted",
            label=self.label_of(rollout),
            correct=np.nan if correct is None else float(correct),
            reward=rollout.grade.reward,
            has_cot=float(bool(cot.strip())),
            cot_characters=float(len(cot)),
            outputs=outputs,
        )

    def _bin_checkpoint(self, rollout: Rollout) -> str:
        """The base, step 0, stays alone: with 50, the checkpoints are 0, 1–50, 51–100 …"""
        size = self.steps_per_checkpoint
        if not size:
            return rollout.checkpoint
        try:
            first = (int(float(rollout.checkpoint)) - 1) // size * size + 1
            return "0" if first < 1 else str(first) if size == 1 else f"{first}–{first + size - 1}"
        except ValueError:
            raise RolloutFileError(
                f"{self.source.path}, row {rollout.sample}: --steps-per-checkpoint needs numbers, but the "
                f'checkpoint is "{rollout.checkpoint}".'
            ) from None

    def _measure_cell(self, cell: Cell, place: tuple[str, int]) -> MeasuredCell:
        """The measures of one checkpoint and seed. If too many answers are unread, accuracy is undefined for this
        reason, and so are measures of the behaviour unless the file has its label."""
        key, columns = ("external", *place), self.source.mapping.columns
        measures = self._estimate(cell, key)
        labelled = _labelled(cell)
        if 0 < len(labelled.rows) < len(cell.rows):  # a person labelled some of them
            known = self._estimate(labelled, key)
            measures |= {name: own for name, own in known.items() if "labels" in lookup(name).needs}
        why_unread = "" if self.allow_unread else explain_unread(cell.reading, *WAYS)
        for name in measures if why_unread else ():
            has_label = "label" in columns or "labels" not in lookup(name).needs
            if name == "rollout_accuracy" or not has_label:
                measures[name] = measuring.undefined(name, why_unread)
        return MeasuredCell(
            checkpoint=place[0],
            seed=place[1],
            rollouts=cell.rollouts,
            problems=len({row.problems for row in cell.rows}),
            is_sample=cell.limit < 2**64,
            measures=measures,
            reading=cell.reading,
        )

    def _estimate(self, cell: Cell, key: Key) -> dict[str, Measure]:
        columns, scores = self._collect_columns(cell)
        return measuring.measure(columns, "file", scores, key=key).measures

    def _collect_columns(self, cell: Cell) -> tuple[Columns, list[Scores]]:
        """The rollouts of a cell as columns, and the monitors' outputs for them."""
        rows = cell.rows
        values: dict[str, Any] = {
            name: np.array([getattr(row, name) for row in rows], dtype)
            for name, dtype in COLUMNS.items()
        }
        labels = as_floats(row.label for row in rows)
        known = not np.isnan(labels).any()
        scores = [
            Scores.from_outputs(
                fitted.name,
                [row.outputs[n] for row in rows],
                reason=fitted.reason,
                no_threshold=fitted.no_threshold,
            )
            for n, fitted in enumerate(self.fitted)
        ]
        return Columns(behaviour=labels == 1, has_labels=known, **values), scores


def measure(
    rollouts: str | Path | RolloutFile,
    map: Mapping[str, str] | Sequence[str] = (),
    *,
    progress: bool = True,
    console: Console | None = None,
    **options: Any,
) -> MeasureReport:
    """Measure a file or folder of rollouts: JSON lines, Parquet, a Hugging Face dataset, an Inspect log
    or a run directory; or what was opened as a `RolloutFile`. `map` says which column holds which field;
    the columns of TRL, verl, verifiers and Inspect are recognised. `monitors` are monitors, or texts as for
    `glasshouse measure --monitor`. `answer_kind` is that of the gold answers, if it is not what they look
    like. `allow_unread` gives accuracies although more than 20 % of the answers could not be read. The
    other options are those of `RolloutFile`.

    Example:
        report = measure("rollouts.jsonl", {"label": "hacked", "arm": "condition"},
                         monitors=["rule:hint=(?i)hint|key", "ngrams"])
        pandas.DataFrame(report.rows())
    """
    file = rollouts if isinstance(rollouts, RolloutFile) else RolloutFile(rollouts, map, **options)
    with show_status(console or make_console(stderr=True), progress) as file.show:
        return file.measure()


def _check_given(given: Monitor) -> Monitor:
    if isinstance(given, type):
        raise MonitorError(
            f"{given.__name__} is a class: give measure a monitor, {given.__name__}(…)."
        )
    if not isinstance(given, FittedKind):
        check_monitor(str(given), given)
    return given


# --- the rollouts of a checkpoint and seed -------------------------------------------------------------


class CellRow(NamedTuple):
    """What the measures need of one rollout; NaN where the file does not say it."""

    problems: int
    """A hash of its name."""
    planted: bool
    label: float
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
    reading: Reading = field(default_factory=Reading)

    def takes(self, rollout: Rollout) -> bool:
        """Count a rollout; is its problem in the sample?"""
        self.rollouts += 1
        self.reading.add(rollout)
        return hash_problem(rollout.problem.key) < self.limit

    def add(self, row: CellRow) -> None:
        """Keep a row. If there are too many, the half of the problems with the smaller hashes stays; of a
        single problem, the rows so far."""
        if row.problems >= self.limit:  # it was in the sample before this batch
            return
        self.rows.append(row)
        if len(self.rows) > MAX_ROLLOUTS:
            problems = sorted({row.problems for row in self.rows})
            self.limit = problems[len(problems) // 2] if len(problems) > 1 else 0
            self.rows = [row for row in self.rows if row.problems < self.limit] or self.rows


COLUMNS: dict[str, type] = {"problems": np.uint64, "planted": bool}
COLUMNS |= dict.fromkeys(("correct", "reward", "has_cot", "cot_characters"), float)
"""Fields of a row that are columns of the same name."""


def hash_problem(name: str) -> int:
    return randomness.key("external problem", name)


def _order_checkpoints(names: Sequence[str]) -> list[str]:
    """Numbers in order; other names as they appear."""
    distinct = list(dict.fromkeys(names))
    try:
        return sorted(distinct, key=lambda name: float(name.partition("–")[0]))
    except ValueError:
        return distinct


def _labelled(cell: Cell) -> Cell:
    """Those of its rollouts whose behaviour is known: a person may have labelled a few."""
    return replace(cell, rows=[row for row in cell.rows if not np.isnan(row.label)])


def compare_first_and_last(
    cells: Sequence[MeasuredCell], order: Sequence[str]
) -> dict[str, PairedComparison]:
    """The last checkpoint minus the first, measure by measure, over the seeds that have both."""
    if len(order) < 2:
        return {}
    first, last = (
        {c.seed: c.measures for c in cells if c.checkpoint == name}
        for name in (order[0], order[-1])
    )
    seeds = sorted(first.keys() & last.keys())
    names = list(dict.fromkeys(name for cell in cells for name in cell.measures))
    no_value = undefined_measure("the checkpoint lacks an arm")
    compared = [
        compare_paired(
            *([s[seed].get(name, no_value).value for seed in seeds] for s in (last, first))
        )
        for name in names
    ]
    return dict(zip(names, holm_correct(compared), strict=True))


# --- monitors ------------------------------------------------------------------------------------------


def part_of(problem: str) -> str:
    """What the rollouts of a problem are used for, if a monitor is fitted."""
    tenth = randomness.key("external part", problem) % 10
    if tenth < FIT_TENTHS:
        return FIT
    return THRESHOLD if tenth < FIT_TENTHS + THRESHOLD_TENTHS else "evaluate"


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


def _view(scope: Scope, rollout: Rollout) -> View:
    cot, answer = parts_of(rollout.cot, rollout.text)
    parts = {"prompt": rollout.prompt, "question": rollout.prompt, "cot": cot, "answer": answer}
    state = None if rollout.activations is None else np.array(rollout.activations)
    return view_of_parts(scope, parts, state)


def _views(scope: Scope, rows: Sequence[tuple[Rollout, int]]) -> LabelledViews:
    views = [_view(scope, rollout) for rollout, _ in rows]
    labels, problems = [label for _, label in rows], [rollout.problem.key for rollout, _ in rows]
    return LabelledViews(views, labels, problems)


def _describe(monitor: FittedMonitor, outputs: Iterable[MonitorOutput]) -> dict[str, Any]:
    """Its settings, and on how many rollouts it failed; a fitted monitor has no output where it was fitted."""
    if monitor.monitor is None:
        return {"name": monitor.name, "reason": monitor.reason}
    described = {k: v for k, v in monitor.monitor.describe().items() if k != "weights"}
    given = list(outputs)
    failed = 0 if monitor.is_fitted else sum(output.failed for output in given)
    return described | mean_cost(given) | ({"failed": failed} if failed else {})
