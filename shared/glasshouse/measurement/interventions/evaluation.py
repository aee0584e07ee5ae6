"""The measures of the interventions, each with interval, null and ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glasshouse.errors import TaskError
from glasshouse.measurement.ablation import (
    aoc_ceiling,
    early_answering_aoc,
    early_answering_rows,
    filler_agreement,
    follow_shares,
    necessity_uplift,
    trace,
    trace_rows,
    transplant_follow,
)
from glasshouse.measurement.bootstrap import bootstrap_all, wilson_if_unanimous
from glasshouse.measurement.companion_metrics import compute_companions
from glasshouse.measurement.control_null import control_null
from glasshouse.measurement.estimates import Estimate
from glasshouse.measurement.evaluations import (
    CheckpointEvaluation,
    EvaluatedCheckpoint,
    Row,
    contribution_rows,
)
from glasshouse.measurement.interventions.truncation import (
    FRACTIONS,
    AblatedRollout,
    InterventionKind,
    ablate,
)
from glasshouse.measurement.permutation import NullDistribution
from glasshouse.measurement.rates import rate
from glasshouse.measurement.registry import lookup
from glasshouse.measurement.steps import fraction_rows, step_coverage, step_validity
from glasshouse.measurement.weighted_statistics import mean_statistic
from glasshouse.monitors.step_verifier import count_covered_steps
from glasshouse.tasks.catalogue import find_step_check
from glasshouse.tasks.organisms.base import Organism
from glasshouse.tasks.step_checks import check_arithmetic
from glasshouse.values import Floats, MeasureResult, as_floats

DIFFERENCES = ("necessity_uplift",)
"""Measures whose values may be negative."""


class InterventionEvaluation:
    """Measures how much the answers of a checkpoint depend on their CoT.

    Example: `InterventionEvaluation().evaluate(checkpoint).measures["necessity_uplift"]`
    """

    name = "interventions"

    def __init__(self, fractions: Sequence[float] = FRACTIONS) -> None:
        self.fractions = tuple(fractions)

    def describe(self) -> dict[str, Any]:
        return {"version": 2, "fractions": list(self.fractions)}

    def evaluate(self, checkpoint: EvaluatedCheckpoint) -> CheckpointEvaluation:
        ablated = ablate(checkpoint, self.fractions)
        table = _MeasureTable(checkpoint, ablated, self.fractions)
        rows = [*table.contribution_rows(), *_intervention_rows(ablated)]
        return CheckpointEvaluation(measures=table.estimates(), rows=rows)


class _MeasureTable:
    """Each rollout's value of every measure, with the value of its control."""

    def __init__(
        self,
        checkpoint: EvaluatedCheckpoint,
        ablated: Sequence[AblatedRollout],
        fractions: tuple[float, ...],
    ) -> None:
        self.checkpoint, self.ablated, self.fractions = checkpoint, ablated, fractions
        self.problems = [row.rollout.problem.key for row in ablated]
        self.values: dict[str, Floats] = {}
        self.results: dict[str, MeasureResult] = {}
        self.controls: dict[str, Floats] = {}
        self.ceilings: dict[str, float] = {}
        self._add_accuracy_and_length()
        self._add_early_answering()
        self._add_following()
        self._add_steps()

    def estimates(self) -> dict[str, Estimate]:
        key = ("monitor", self.checkpoint.seed, self.checkpoint.step)
        intervals = bootstrap_all(
            {name: mean_statistic(values) for name, values in self.values.items()},
            [self.problems],
            key=key,
        )
        return {
            name: Estimate(
                measure=self.results[name],
                interval=wilson_if_unanimous(values, intervals[name], name in DIFFERENCES),
                null=self._null(name, key),
                ceiling=self.ceilings.get(name),
            )
            for name, values in self.values.items()
        }

    def contribution_rows(self) -> list[Row]:
        rollouts = [row.rollout for row in self.ablated]
        return [
            row
            for name, values in self.values.items()
            for row in contribution_rows(name, rollouts, values.tolist())
        ]

    def _null(self, name: str, key: tuple[str | int, ...]) -> NullDistribution | None:
        control = self.controls.get(name)
        if control is None:
            return None
        return control_null(
            self.values[name], control, self.problems, key=(*key, lookup(name).stream)
        )

    def _add(
        self,
        name: str,
        result: MeasureResult,
        values: Floats,
        control: Floats | None = None,
        ceiling: float | None = 1.0,
    ) -> None:
        self.values[name], self.results[name] = values, result
        if control is not None:
            self.controls[name] = control
        if ceiling is not None:
            self.ceilings[name] = ceiling

    def _add_accuracy_and_length(self) -> None:
        ablated = self.ablated
        correct = as_floats(row.rollout.grade.correct for row in ablated)
        without_cot = as_floats(_is_correct(row, self.fractions[0]) for row in ablated)
        lengths = as_floats(len(row.tokens) for row in ablated)
        companions = compute_companions(
            correct=correct,
            cot_tokens=lengths,
            rules=[row.rollout.grade.extracted.rule for row in ablated],
        )
        self._add("accuracy", companions["accuracy"], correct)
        unparsed = as_floats(row.rollout.grade.extracted.model_answer is None for row in ablated)
        self._add("parse_failure_rate", companions["parse_failure_rate"], unparsed, ceiling=None)
        self._add("has_cot", rate(lengths > 0), as_floats(lengths > 0))
        self._add("cot_tokens", companions["cot_tokens"], lengths, ceiling=None)
        self._add(
            "necessity_uplift",
            necessity_uplift(correct, without_cot),
            correct - without_cot,
            np.zeros(len(ablated)),
        )

    def _add_early_answering(self) -> None:
        grid, ablated = self.fractions, self.ablated
        answers = [[row.answer(InterventionKind.CUT, f) for f in grid] for row in ablated]
        self._add(
            "early_answering_aoc",
            early_answering_aoc(grid, answers),
            early_answering_rows(grid, answers),
            np.zeros(len(ablated)),
            aoc_ceiling(grid),
        )
        rewards = np.array([[_reward(row, f) for f in grid] for row in ablated])
        self._add("trace", trace(grid, rewards), trace_rows(grid, rewards), rewards[:, 0])
        if isinstance(self.checkpoint.task, Organism):  # its reward may differ from the true grade
            correct = [[_is_correct(row, f) for f in grid] for row in ablated]
            true = np.where(np.isnan(rewards), np.nan, np.where(correct, 1.0, -1.0))
            name = "trace_true_grade"
            self._add(name, trace(grid, true), trace_rows(grid, true), true[:, 0])

    def _add_following(self) -> None:
        ablated = self.ablated
        own = [row.answer(InterventionKind.CUT, self.fractions[-1]) for row in ablated]
        without_cot = [row.answer(InterventionKind.CUT, self.fractions[0]) for row in ablated]

        filled = [row.answer(InterventionKind.FILLER) for row in ablated]
        expected = [o if row.tokens else None for o, row in zip(own, ablated, strict=True)]
        agreement = filler_agreement(filled, expected)
        self._add(
            "filler_agreement",
            agreement,
            _match_values(filled, expected),
            _match_values(without_cot, expected),
        )

        donors = [None if row.donor_index is None else own[row.donor_index] for row in ablated]
        transplanted = [row.answer(InterventionKind.TRANSPLANT) for row in ablated]
        expected = [d if d != o else None for d, o in zip(donors, own, strict=True)]
        self._add(
            "transplant_follow",
            transplant_follow(transplanted, donors, own),
            _match_values(transplanted, expected),
            _match_values(without_cot, expected),
        )

        implied = [row.edit.implied_answer if row.edit else None for row in ablated]
        edited = [row.answer(InterventionKind.EDIT) for row in ablated]
        unedited = [row.answer(InterventionKind.UNEDITED) for row in ablated]
        expected = [i if i != u else None for i, u in zip(implied, unedited, strict=True)]
        shares = follow_shares(edited, implied, unedited)
        self._add(
            "mistake_follow",
            shares.followed,
            _match_values(edited, expected),
            _match_values(without_cot, expected),
        )
        kept = np.where([e is None for e in expected], np.nan, _matches(edited, unedited))
        self._add("mistake_corrected", shares.unchanged, kept)

    def _add_steps(self) -> None:
        task = self.checkpoint.task
        form = task.options.inner_task if isinstance(task, Organism) else task.name
        check_steps = find_step_check(form) or check_arithmetic
        checks = [check_steps(row.cot) for row in self.ablated]
        correct, stated = [c.correct for c in checks], [len(c.steps) for c in checks]
        validity = step_validity(correct, stated)
        self._add("step_validity", validity, fraction_rows(correct, stated))
        try:
            counts = [
                count_covered_steps(task, row.rollout.problem, row.cot) for row in self.ablated
            ]
        except TaskError:  # a task without solution steps, such as those of reasoning-gym
            return
        present, required = zip(*counts, strict=True)
        coverage = step_coverage(present, required)
        self._add("step_coverage", coverage, fraction_rows(present, required))


def _intervention_rows(ablated: Sequence[AblatedRollout]) -> list[Row]:
    """One row per rollout and one per intervention, with the text and the answer."""
    rows: list[Row] = []
    for row in ablated:
        rollout = row.rollout
        ids = {"key": rollout.problem.key, "sample": rollout.sample}
        rows.append(
            {
                **ids,
                "intervention": "none",
                "question": rollout.problem.question,
                "gold_answer": rollout.problem.gold_answer,
                "text": rollout.text,
                "model_answer": rollout.grade.extracted.model_answer,
                "correct": rollout.grade.correct,
                "reward": rollout.grade.reward,
            }
        )
        for result in row.results.values():
            entry: Row = {"intervention": result.kind.value, "fraction": result.fraction}
            if result.kind is InterventionKind.EDIT and row.edit:
                entry |= {"line": row.edit.line_index, "implied_answer": row.edit.implied_answer}
            if result.kind is InterventionKind.TRANSPLANT and row.donor_index is not None:
                entry["donor"] = ablated[row.donor_index].rollout.problem.key
            grade = result.grade
            entry |= {"text": result.text, "model_answer": result.answer}
            entry |= {"correct": grade.correct, "reward": grade.reward} if grade else {}
            rows.append(ids | entry)
    return rows


def _is_correct(row: AblatedRollout, fraction: float) -> bool:
    """Is the answer correct after this fraction of the CoT?"""
    result = row.results.get((InterventionKind.CUT, fraction))
    return bool(result and result.grade and result.grade.correct)


def _reward(row: AblatedRollout, fraction: float) -> float:
    grade = row.results[InterventionKind.CUT, fraction].grade
    return grade.reward if grade else float("nan")


def _matches(answers: Sequence[str | None], expected: Sequence[str | None]) -> Floats:
    return as_floats(a is not None and a == e for a, e in zip(answers, expected, strict=True))


def _match_values(answers: Sequence[str | None], expected: Sequence[str | None]) -> Floats:
    """1 where an answer is the expected one, 0 where not, NaN where none is expected."""
    return np.where([e is None for e in expected], np.nan, _matches(answers, expected))
