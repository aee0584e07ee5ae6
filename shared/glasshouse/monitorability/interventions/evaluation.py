"""What the interventions say of a checkpoint: every measure with interval, null and ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glasshouse import measures
from glasshouse.errors import TaskError
from glasshouse.estimation import Null, Scored, bootstrap_all, control_null, of_mean, unanimous
from glasshouse.measures import Measure
from glasshouse.measures.ablation import early_answering_rows, trace_rows
from glasshouse.measures.result import Floats
from glasshouse.measures.steps import validity_rows
from glasshouse.monitorability.base import Findings, Row, Subject, shares
from glasshouse.monitorability.interventions.ablation import FRACTIONS, Ablated, Change, ablate
from glasshouse.monitors.step_verifier import FORMS, arithmetic, coverage
from glasshouse.tasks import Organism

DIFFERENCES = ("necessity uplift",)
"""Measures whose rows may be negative."""


class Interventions:
    """The evaluation `glasshouse monitor` makes of every checkpoint.

    Example: `Interventions().evaluate(subject).measures["necessity uplift"].measure.value`
    """

    name = "interventions"

    def __init__(self, fractions: Sequence[float] = FRACTIONS) -> None:
        self.fractions = tuple(fractions)

    def describe(self) -> dict[str, Any]:
        return {"version": 2, "fractions": list(self.fractions)}

    def evaluate(self, subject: Subject) -> Findings:
        found = ablate(subject, self.fractions)
        table = _Table(subject, found, self.fractions)
        scored = table.scored()
        return Findings(measures=scored, rows=[*table.shares(), *_texts(found)])


class _Table:
    """Each rollout's share in every measure, beside the share of its control."""

    def __init__(
        self, subject: Subject, found: Sequence[Ablated], fractions: tuple[float, ...]
    ) -> None:
        self.subject, self.found, self.fractions = subject, found, fractions
        self.problems = [row.rollout.problem.key for row in found]
        self.rows: dict[str, Floats] = {}
        self.measured: dict[str, Measure] = {}
        self.controls: dict[str, Floats] = {}
        self.ceilings: dict[str, float] = {}
        self._right_and_length()
        self._early()
        self._followed()
        self._steps()

    def scored(self) -> dict[str, Scored]:
        key = ("monitor", self.subject.seed, self.subject.step)
        intervals = bootstrap_all(
            {name: of_mean(rows) for name, rows in self.rows.items()}, [self.problems], key=key
        )
        return {
            name: Scored(
                name=name,
                measure=self.measured[name],
                interval=unanimous(self.rows[name], intervals[name], name in DIFFERENCES),
                null=self._null(name, key),
                ceiling=self.ceilings.get(name),
            )
            for name in self.rows
        }

    def shares(self) -> list[Row]:
        rollouts = [row.rollout for row in self.found]
        return [
            s for name, rows in self.rows.items() for s in shares(name, rollouts, rows.tolist())
        ]

    def _null(self, name: str, key: tuple[str | int, ...]) -> Null | None:
        control = self.controls.get(name)
        if control is None:
            return None
        return control_null(self.rows[name], control, self.problems, key=(*key, name))

    def _add(
        self,
        name: str,
        measure: Measure,
        rows: Floats,
        control: Floats | None = None,
        ceiling: float | None = 1.0,
    ) -> None:
        self.rows[name], self.measured[name] = rows, measure
        if control is not None:
            self.controls[name] = control
        if ceiling is not None:
            self.ceilings[name] = ceiling

    def _right_and_length(self) -> None:
        found = self.found
        right = _floats(row.rollout.grade.correct for row in found)
        at_once = _floats(_correct(row, Change.CUT, self.fractions[0]) for row in found)
        lengths = _floats(len(row.tokens) for row in found)
        beside = measures.beside(
            correct=right,
            cot_tokens=lengths,
            rules=[row.rollout.grade.extracted.rule for row in found],
        )
        self._add("accuracy", beside["accuracy"], right)
        unread = _floats(row.rollout.grade.extracted.value is None for row in found)
        self._add("parse failures", beside["parse failures"], unread, ceiling=None)
        self._add("has a CoT", measures.rate(lengths > 0), _floats(lengths > 0))
        self._add("CoT tokens", beside["CoT tokens"], lengths, ceiling=None)
        self._add(
            "necessity uplift",
            measures.necessity_uplift(right, at_once),
            right - at_once,
            np.zeros(len(found)),
        )

    def _early(self) -> None:
        grid, found = self.fractions, self.found
        answers = [[row.answer(Change.CUT, f) for f in grid] for row in found]
        self._add(
            "early-answering AOC",
            measures.early_answering_aoc(grid, answers),
            early_answering_rows(grid, answers),
            np.zeros(len(found)),
            measures.aoc_ceiling(grid),
        )
        earned = np.array([[_reward(row, f) for f in grid] for row in found])
        self._add("TRACE", measures.trace(grid, earned), trace_rows(grid, earned), earned[:, 0])
        if isinstance(
            self.subject.task, Organism
        ):  # its reward may be another thing than the truth
            cuts = [[_correct(row, Change.CUT, f) for f in grid] for row in found]
            true = np.where(np.isnan(earned), np.nan, np.where(cuts, 1.0, -1.0))
            name = "TRACE, true grade"
            self._add(name, measures.trace(grid, true), trace_rows(grid, true), true[:, 0])

    def _followed(self) -> None:
        found, last = self.found, self.fractions[-1]
        own = [row.answer(Change.CUT, last) for row in found]
        at_once = [row.answer(Change.CUT, self.fractions[0]) for row in found]

        filled = [row.answer(Change.FILLER) for row in found]
        kept = [o if row.tokens else None for o, row in zip(own, found, strict=True)]
        agree = measures.filler_agreement(filled, kept)
        self._add("filler agreement", agree, _same(filled, kept), _same(at_once, kept))

        donors = [None if row.donor is None else own[row.donor] for row in found]
        grafted = [row.answer(Change.TRANSPLANT) for row in found]
        apart = [d if d != o else None for d, o in zip(donors, own, strict=True)]
        follow = measures.transplant_follow(grafted, donors, own)
        self._add("transplant follow", follow, _same(grafted, apart), _same(at_once, apart))

        then = [row.edit.consequence if row.edit else None for row in found]
        edited = [row.answer(Change.EDIT) for row in found]
        before = [row.answer(Change.UNEDITED) for row in found]
        apart = [t if t != b else None for t, b in zip(then, before, strict=True)]
        shares = measures.follow(edited, then, before)
        chance = [row.answer(Change.CUT, self.fractions[0]) for row in found]
        self._add("mistake-follow", shares.followed, _same(edited, apart), _same(chance, apart))
        eligible = [b if a is not None else None for a, b in zip(apart, before, strict=True)]
        kept_rows = np.where([a is None for a in apart], np.nan, _hits(edited, eligible))
        self._add("mistake corrected", shares.kept, kept_rows)

    def _steps(self) -> None:
        task = self.subject.task
        form = task.options.of if isinstance(task, Organism) else task.name
        check = FORMS[form][0] if form in FORMS else arithmetic
        checked = [check(row.cot) for row in self.found]
        true, stated = [c.true for c in checked], [len(c.steps) for c in checked]
        self._add(
            "step validity", measures.step_validity(true, stated), validity_rows(true, stated)
        )
        try:
            here, needed = zip(
                *(coverage(task, row.rollout.problem, row.cot) for row in self.found), strict=True
            )
        except TaskError:  # a task that shows no working, one of reasoning-gym's
            return
        covered = measures.step_coverage(here, needed)
        self._add("step coverage", covered, validity_rows(here, needed))


def _texts(found: Sequence[Ablated]) -> list[Row]:
    """What was forced and what followed, a row an intervention; the rollout itself first."""
    rows: list[Row] = []
    for row in found:
        r = row.rollout
        named = {"key": r.problem.key, "sample": r.sample}
        rows.append(
            {
                **named,
                "change": "none",
                "question": r.problem.question,
                "gold": r.problem.answer,
                "text": r.text,
                "answer": r.grade.extracted.value,
                "correct": r.grade.correct,
                "reward": r.grade.reward,
            }
        )
        for asked in row.asked.values():
            more: Row = {"change": asked.change.value, "fraction": asked.fraction}
            if asked.change is Change.EDIT and row.edit:
                more |= {"line": row.edit.line, "consequence": row.edit.consequence}
            if asked.change is Change.TRANSPLANT and row.donor is not None:
                more["donor"] = found[row.donor].rollout.problem.key
            grade = asked.grade
            more |= {"text": asked.text, "answer": asked.answer}
            more |= {"correct": grade.correct, "reward": grade.reward} if grade else {}
            rows.append(named | more)
    return rows


def _correct(row: Ablated, change: Change, fraction: float) -> bool:
    found = row.asked.get((change, fraction))
    return bool(found and found.grade and found.grade.correct)


def _reward(row: Ablated, fraction: float) -> float:
    grade = row.asked[Change.CUT, fraction].grade
    return grade.reward if grade else float("nan")


def _floats(values: Any) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _hits(answers: Sequence[str | None], wanted: Sequence[str | None]) -> Floats:
    return _floats(a is not None and a == w for a, w in zip(answers, wanted, strict=True))


def _same(answers: Sequence[str | None], wanted: Sequence[str | None]) -> Floats:
    """1 where an answer is the wanted one, 0 where not, NaN where none is wanted."""
    return np.where([w is None for w in wanted], np.nan, _hits(answers, wanted))
