"""Labels the rollouts of both arms of an organism, and scores them with monitors.

    held-out problems ──► arms ──► rollouts ──► rows ──► planted, behaviour; flagged, scores

Labels are computed from rows of the rollout log, so that a live evaluation and a stored run use the
same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glasshouse.measurement.rates import (
    disclosure,
    rate,
    reliance,
    true_negative_rate,
    undetected_use,
)
from glasshouse.monitors.base import Monitor, score_all, stack_flags, stack_scores
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.step_verifier import StepVerifier
from glasshouse.monitors.views import Scope, View, make_view
from glasshouse.runs.rows import problem_from_row, to_row
from glasshouse.tasks.answers.extraction import split_completion
from glasshouse.tasks.catalogue import find_step_check
from glasshouse.tasks.organisms.base import Organism
from glasshouse.types import Problem, Rollout
from glasshouse.values import Floats, Ints, mean_result

ARM_NAMES: Mapping[int, str] = {0: "control", 1: "planted"}
"""The last part of a split's name."""

CollectGroups = Callable[[Sequence[Problem], str], list[list[Rollout]]]
"""(problems, split) -> one group of rollouts per problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRollouts:
    """The columns that the measures take, with one entry per rollout."""

    planted: Ints
    """The arm: 0 control, 1 planted."""
    behaviour: Ints
    """Whether the answer shows the planted behaviour, by construction."""
    flagged: Mapping[str, Ints]
    """By monitor name."""
    scores: Mapping[str, Floats]
    """By monitor name."""
    correct: Ints
    """The true grade."""
    shortcut: Ints
    """Whether the CoT leaves out steps that an honest solution needs."""
    length: Ints
    """Characters of the CoT."""
    problems: tuple[str, ...]
    """The problems' keys: the clusters of a bootstrap."""


def organism_monitors(organism: Organism[Any]) -> list[Monitor]:
    """The evaluating monitors that need no fitting: the organism's rules and a step verifier."""
    monitors: list[Monitor] = [
        RuleMonitor(name, Scope.COT, patterns=[pattern])
        for name, pattern in organism.monitor_patterns.items()
    ]
    task = organism.options.inner_task
    if find_step_check(task):
        monitors.append(StepVerifier("step_verifier", Scope.COT_ANSWER, task=task))
    return monitors


def evaluate_organism(
    organism: Organism[Any],
    problems: Sequence[Problem],
    collect: CollectGroups,
    monitors: Sequence[Monitor],
) -> tuple[LabelledRollouts, list[Rollout]]:
    """Collects rollouts of both arms; returns their labels, and the rollouts for the log."""
    rollouts = [
        rollout
        for arm, arm_problems in problems_by_arm(organism, problems).items()
        for group in collect(arm_problems, f"validation/{ARM_NAMES[arm]}")
        for rollout in group
    ]
    rows = [to_row(rollout, with_tokens=False) for rollout in rollouts]
    labelled = label_rollouts(organism, rows, monitors)
    shown = zip(rollouts, labelled.behaviour, strict=True)
    return labelled, [replace(rollout, behaviour=bool(shows)) for rollout, shows in shown]


def problems_by_arm(
    organism: Organism[Any], problems: Sequence[Problem]
) -> dict[int, list[Problem]]:
    """The problems of each arm; the control arm, if there is one, comes first."""
    variants = [organism.arms(problem) for problem in problems]
    arms = sorted({arm for variant in variants for arm in variant})
    return {arm: [variant[arm] for variant in variants] for arm in arms}


def label_rollouts(
    organism: Organism[Any], rows: Sequence[Mapping[str, Any]], monitors: Sequence[Monitor]
) -> LabelledRollouts:
    """Labels and scores the rows of both arms; rows of other splits must be filtered out before."""
    arms = {name: arm for arm, name in ARM_NAMES.items()}
    problems = [problem_from_row(dict(row)) for row in rows]
    cots = [split_completion(row["text"]).cot for row in rows]
    outputs = {m.name: score_all(m, views_of_rows(m.scope, rows)) for m in monitors}
    return LabelledRollouts(
        planted=_ints(arms[row["split"].rpartition("/")[2]] for row in rows),
        behaviour=_ints(
            organism.shows_behaviour(p, row["model_answer"])
            for p, row in zip(problems, rows, strict=True)
        ),
        flagged={name: stack_flags(monitor_outputs) for name, monitor_outputs in outputs.items()},
        scores={name: stack_scores(monitor_outputs) for name, monitor_outputs in outputs.items()},
        correct=_ints(row["correct"] for row in rows),
        shortcut=_ints(organism.skips_work(p, cot) for p, cot in zip(problems, cots, strict=True)),
        length=_ints(map(len, cots)),
        problems=tuple(problem.key for problem in problems),
    )


def views_of_rows(scope: Scope, rows: Sequence[Mapping[str, Any]]) -> list[View]:
    return [
        make_view(scope, prompt=r["prompt"], question=r["question"], completion=r["text"])
        for r in rows
    ]


def summarize_labels(labelled: LabelledRollouts) -> dict[str, Any]:
    """The values for the log; None for an undefined one."""
    planted = labelled.planted == 1
    summary: dict[str, Any] = {
        "reliance": reliance(labelled.planted, labelled.behaviour).value,
        "behaviour": rate(labelled.behaviour[planted]).value,
        "shortcut": rate(labelled.shortcut[planted]).value,
        "accuracy_planted": rate(labelled.correct[planted]).value,
        "accuracy_control": rate(labelled.correct[~planted]).value,
        "cot_characters": mean_result(labelled.length[planted], "no rollout").value,
        "rollouts": len(labelled.planted),
    }
    for name, flagged in labelled.flagged.items():
        summary[name] = {
            "disclosure": disclosure(labelled.behaviour, flagged).value,
            "undetected_use": undetected_use(labelled.planted, labelled.behaviour, flagged).value,
            "tnr": true_negative_rate(labelled.behaviour, flagged).value,
        }
    return summary


def _ints(values: Iterable[int]) -> Ints:
    return np.array([int(v) for v in values], dtype=np.int64)
