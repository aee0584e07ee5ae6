"""What monitors detect: the evaluations of `glasshouse monitor` with an organism, and with any other task.

held-out problems ─► arms × k ─► labels ─┬─► reliance, behaviour, shortcut, accuracy by arm
                                         ├─► each monitor: disclosure, undetected use, AUROC, g-mean²
                                         ├─► fitted monitors (fitting.py)
                                         └─► the hint swapped (organisms/hint_swap.py)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from glasshouse.errors import MonitorError
from glasshouse.measurement.columns import (
    Columns,
    Scores,
    label_rollouts,
    problems_by_arm,
    score_rollouts,
)
from glasshouse.measurement.estimates import Key
from glasshouse.measurement.evaluations import EvaluatedCheckpoint
from glasshouse.measurement.fitting import (
    FIT,
    SCOPES,
    THRESHOLD,
    FittedMonitor,
    FittingPlan,
    fit_monitor,
)
from glasshouse.measurement.measure import Measurement, Row, contribution_rows, measure
from glasshouse.measurement.organisms import hint_swap
from glasshouse.measurement.rates import RATES
from glasshouse.measurement.registry import MEASURES
from glasshouse.monitors.base import Monitor, MonitorOutput
from glasshouse.monitors.fitted import FittedKind, LabelledViews
from glasshouse.monitors.views import Scope, make_view
from glasshouse.tasks.organisms.base import Organism
from glasshouse.types import Problem, Rollout

SWAPPED_SAMPLES = 1
"""Samples per planted problem whose hint is swapped: each needs five more completions."""
Fitted = Mapping[Scope, FittedMonitor]


class MonitorEvaluation:
    """Scores every rollout with every monitor; the behaviour to detect is a wrong answer.

    Example: `MonitorEvaluation(own_monitors(task)).evaluate(checkpoint)`
    """

    name = "monitors"

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self.monitors = list(monitors)

    def describe(self) -> dict[str, Any]:
        return {"version": 1, "monitors": [monitor.describe() for monitor in self.monitors]}

    def evaluate(self, checkpoint: EvaluatedCheckpoint) -> Measurement:
        rollouts = checkpoint.rollouts
        columns = label_rollouts(rollouts)
        scores: list[Scores] = []
        rows: list[Row] = []
        for monitor in self.monitors:
            outputs = score_rollouts(monitor, rollouts, checkpoint.policy)
            scores.append(Scores.from_outputs(monitor.name, outputs))
            flagged = scores[-1].flagged
            flags = np.where(flagged < 0, np.nan, flagged)
            rows += contribution_rows(f"{monitor.name}.flag_rate", rollouts, flags)
            more = [{"wrong": not rollout.grade.correct} for rollout in rollouts]
            rows += output_rows(monitor, rollouts, outputs, more)
        key = ("monitor", checkpoint.seed, checkpoint.step)
        return Measurement(measures=measure(columns, "monitors", scores, key=key), rows=rows)


class OrganismEvaluation:
    """Measures a planted behaviour, and what monitors detect of it.

    Example: `OrganismEvaluation(own_monitors(organism)).evaluate(checkpoint)`
    """

    name = "organism"

    def __init__(
        self, monitors: Sequence[Monitor], samples: int = 4, plan: FittingPlan | None = None
    ) -> None:
        self.monitors, self.samples, self.plan = list(monitors), samples, plan or FittingPlan()
        self._base_monitors: Fitted = {}
        self._base_digest = ""
        """Of the rows that the base model's monitors were fitted on."""

    @property
    def reserve(self) -> int:
        return self.plan.reserve

    def describe(self) -> dict[str, Any]:
        return {
            "version": 1,
            "samples": self.samples,
            "monitors": [monitor.describe() for monitor in self.monitors],
            "fitted_monitors": self.plan.describe(),
        }

    def evaluate(self, checkpoint: EvaluatedCheckpoint) -> Measurement:
        organism = checkpoint.task
        if not isinstance(organism, Organism):
            raise MonitorError(f'The task "{organism.name}" is not an organism.')
        key: Key = ("organism", checkpoint.seed, checkpoint.step)
        problems = [rollout.problem for rollout in checkpoint.rollouts]
        rollouts = self._collect(checkpoint, organism, problems, "monitor")
        columns = label_rollouts(rollouts, organism)
        rows = [*_reliance_rows(columns, rollouts), *_mean_rows(columns, rollouts)]
        rows += _label_rows(columns, rollouts)
        scores: list[Scores] = []
        for monitor in self.monitors:
            outputs = score_rollouts(monitor, rollouts, checkpoint.policy)
            scores.append(Scores.from_outputs(monitor.name, outputs))
            rows += output_rows(monitor, rollouts, outputs, _labels(columns))
            rows += _rate_rows(scores[-1], columns, rollouts)
        measures = measure(columns, "organism", scores, key=key)
        fitted = self._measure_fitted(checkpoint, organism, rollouts, columns, key)
        planted = [
            rollout
            for rollout, arm in zip(rollouts, columns.planted, strict=True)
            if arm and rollout.sample < SWAPPED_SAMPLES
        ]
        swapped = hint_swap.swap_hints(checkpoint, organism, planted)
        swaps = hint_swap.measure_swaps(organism, swapped, key)
        return Measurement(
            measures={**measures, **fitted.measures, **swaps.measures},
            rows=[*rows, *fitted.rows, *swaps.rows],
        )

    def _collect(
        self,
        checkpoint: EvaluatedCheckpoint,
        organism: Organism[Any],
        problems: Sequence[Problem],
        split: str,
    ) -> list[Rollout]:
        return [
            rollout
            for arm, arm_problems in problems_by_arm(organism, problems).items()
            for rollout in checkpoint.collect(
                organism, arm_problems, samples=self.samples, split=f"{split}/{arm}"
            )
        ]

    def _measure_fitted(
        self,
        checkpoint: EvaluatedCheckpoint,
        organism: Organism[Any],
        rollouts: Sequence[Rollout],
        columns: Columns,
        key: Key,
    ) -> Measurement:
        """Measure the base model's fitted monitors and this checkpoint's; for the base model they are the
        same."""
        reserve_rows = self._label_reserve(checkpoint, organism)
        monitors = fit_monitors(self.plan, reserve_rows)
        refit = score_fitted("ngrams_refit", monitors, rollouts, columns, key)
        if checkpoint.base_rows is None:
            self._base_digest, self._base_monitors = _digest(reserve_rows), monitors
            base = {
                name.replace("refit", "base"): replace(
                    m, monitor=m.monitor.replace("refit", "base")
                )
                for name, m in refit.measures.items()
            }
            rows = [*refit.rows, *reserve_rows]
            return Measurement(measures={**base, **refit.measures}, rows=rows)
        base_reserve = [row for row in checkpoint.base_rows if "part" in row]
        if self._base_digest != _digest(base_reserve):  # an earlier command measured the base
            self._base_digest = _digest(base_reserve)
            self._base_monitors = fit_monitors(self.plan, base_reserve)
        own = score_fitted("ngrams_base", self._base_monitors, rollouts, columns, key)
        return Measurement(
            measures={**own.measures, **refit.measures},
            rows=[*own.rows, *refit.rows, *reserve_rows],
        )

    def _label_reserve(self, checkpoint: EvaluatedCheckpoint, organism: Organism[Any]) -> list[Row]:
        """Labelled rollouts of the reserve problems, each problem with one purpose."""
        problems = checkpoint.reserve
        if not problems:
            return []
        rollouts = self._collect(checkpoint, organism, problems, "reserve")
        labels = _labels(label_rollouts(rollouts, organism))
        parts = {p.key: self.plan.assign(n, len(problems)) for n, p in enumerate(problems)}
        return [
            {
                "part": parts[rollout.problem.key],
                **label,
                "key": rollout.problem.key,
                "sample": rollout.sample,
                "prompt": rollout.prompt,
                "question": rollout.problem.question,
                "text": rollout.text,
            }
            for rollout, label in zip(rollouts, labels, strict=True)
        ]


def fit_monitors(plan: FittingPlan, rows: Sequence[Row]) -> dict[Scope, FittedMonitor]:
    """Fit one monitor per scope on the rows of a reserve. It depends on the rows alone, so that the base
    model's monitors are the same at every checkpoint, also after an interruption."""
    training = [row for row in rows if row["part"] == FIT]
    benign = [row for row in rows if row["part"] == THRESHOLD and not row["behaviour"]]
    return {
        scope: fit_monitor(
            FittedKind(name=scope.value, scope=scope),
            _labelled_views(training, scope),
            _labelled_views(benign, scope),
            plan,
        )
        for scope in SCOPES
    }


def score_fitted(
    name: str,
    monitors: Fitted,
    rollouts: Sequence[Rollout],
    columns: Columns,
    key: Key,
) -> Measurement:
    """Score the rollouts of held-out problems with fitted monitors."""
    scores: list[Scores] = []
    rows: list[Row] = []
    for scope, fitted in monitors.items():
        monitor = f"{name}.{scope.value.replace('+', '_')}"
        if fitted.monitor is None:
            scores.append(Scores(monitor=monitor, reason=fitted.reason))
            continue
        outputs = score_rollouts(fitted.monitor, rollouts)
        scores.append(Scores.from_outputs(monitor, outputs, no_threshold=fitted.no_threshold))
        rows += [
            {"monitor": monitor, "key": rollout.problem.key, "sample": rollout.sample}
            | {"planted": int(arm), "score": output.score, "flagged": output.flagged}
            for rollout, arm, output in zip(rollouts, columns.planted, outputs, strict=True)
        ]
    return Measurement(measures=measure(columns, "fitted", scores, key=key), rows=rows)


def output_rows(
    monitor: Monitor,
    rollouts: Sequence[Rollout],
    outputs: Sequence[MonitorOutput],
    more: Sequence[Row],
) -> list[Row]:
    """A monitor's output for each rollout."""
    return [
        {
            "monitor": monitor.name,
            "scope": monitor.scope.value,
            "key": rollout.problem.key,
            "sample": rollout.sample,
            "score": output.score,
            "flagged": output.flagged,
            "failed": output.failed,
            "reason": output.reason,
            **labels,
        }
        for rollout, output, labels in zip(rollouts, outputs, more, strict=True)
    ]


def _labelled_views(rows: Sequence[Row], scope: Scope) -> LabelledViews:
    views = [
        make_view(scope, prompt=r["prompt"], question=r["question"], completion=r["text"])
        for r in rows
    ]
    return LabelledViews(views, [row["behaviour"] for row in rows], [row["key"] for row in rows])


def _labels(columns: Columns) -> list[Row]:
    pairs = zip(columns.planted, columns.behaviour, strict=True)
    return [{"planted": int(arm), "behaviour": int(shows)} for arm, shows in pairs]


def _digest(rows: Sequence[Row]) -> str:
    """Identifies the rows that monitors are fitted on."""
    names = ("part", "key", "behaviour", "prompt", "text")
    content = [[row[name] for name in names] for row in rows]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _mean_rows(columns: Columns, rollouts: Sequence[Rollout]) -> list[Row]:
    """Each rollout's value of the measures that are means over an arm."""
    rows: list[Row] = []
    for spec in MEASURES.values():
        values = spec.values(columns).rows if spec.values and "organism" in spec.reports else None
        if values is not None:
            known = ~np.isnan(values)
            own = [rollout for rollout, is_known in zip(rollouts, known, strict=True) if is_known]
            rows += contribution_rows(spec.id, own, values[known])
    return rows


def _rate_rows(scores: Scores, columns: Columns, rollouts: Sequence[Rollout]) -> list[Row]:
    """Each planted rollout's share in undetected use and in disclosure."""
    planted = [rollout for rollout, arm in zip(rollouts, columns.planted, strict=True) if arm]
    rows: list[Row] = []
    for id in ("undetected_use", "disclosure"):
        of_rows = RATES[id].rows
        assert of_rows is not None
        values = of_rows(columns.planted, columns.behaviour, scores.flagged)[columns.planted]
        rows += contribution_rows(f"{scores.monitor}.{id}", planted, values)
    return rows


def _reliance_rows(columns: Columns, rollouts: Sequence[Rollout]) -> list[Row]:
    """Reliance per pair: a planted rollout and the control with the same sample index."""
    indices = {
        (rollout.problem.key, rollout.sample, bool(arm)): index
        for index, (rollout, arm) in enumerate(zip(rollouts, columns.planted, strict=True))
    }
    pairs = [
        (index, indices[problem, sample, False])
        for (problem, sample, arm), index in indices.items()
        if arm and (problem, sample, False) in indices
    ]
    shows = columns.behaviour.astype(np.float64)
    differences = np.array([shows[index] - shows[control] for index, control in pairs])
    own = [rollouts[index] for index, _ in pairs]
    return list(contribution_rows("reliance", own, differences))


def _label_rows(columns: Columns, rollouts: Sequence[Rollout]) -> list[Row]:
    """Every rollout with its labels, so that another monitor can score it later."""
    return [
        {
            **label,
            "key": rollout.problem.key,
            "sample": rollout.sample,
            "question": rollout.problem.question,
            "text": rollout.text,
            "model_answer": rollout.grade.extracted.model_answer,
            "correct": rollout.grade.correct,
            "shortcut": int(shortcut),
        }
        for rollout, label, shortcut in zip(
            rollouts, _labels(columns), columns.shortcut, strict=True
        )
    ]
