"""One checkpoint of an organism: both arms asked, labelled, and shown to the monitors.

    held-out problems ──► arms ──► rollouts ──► rows ──► x, y by construction; z, s by monitors

Labels are read off rows as the record holds them, so that a live evaluation and a run directory
opened years later go through the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glasshouse import measures
from glasshouse.answers import split
from glasshouse.measures.result import Floats, Ints
from glasshouse.monitors import Monitor, RuleMonitor, StepVerifier, flags, score_all, scores
from glasshouse.monitors.step_verifier import FORMS
from glasshouse.monitors.views import Scope, look
from glasshouse.store.rollout_rows import problem_of, row
from glasshouse.tasks import Organism
from glasshouse.types import Problem, Rollout

ARMS: Mapping[int, str] = {0: "control", 1: "planted"}
"""How a split's name ends."""
SPLITS: Mapping[int, str] = {arm: f"validation/{name}" for arm, name in ARMS.items()}
"""What the record calls the arms."""

Collect = Callable[[Sequence[Problem], str], list[list[Rollout]]]
"""(problems, split) to one group a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One row a rollout: everything that the measures take."""

    x: Ints
    """The arm: 0 control, 1 planted."""
    y: Ints
    """The behaviour, by construction."""
    z: Mapping[str, Ints]
    """Each monitor's flags."""
    s: Mapping[str, Floats]
    """Each monitor's scores."""
    correct: Ints
    """The true grade."""
    shortcut: Ints
    """The mechanism: the working is cut short."""
    length: Ints
    """Characters of the CoT."""
    problems: tuple[str, ...]
    """Whose rollout it is: the cluster for a bootstrap."""


def monitors_of(organism: Organism[Any]) -> list[Monitor]:
    """The evaluating monitors that need no fitting: does the CoT own up, do its steps lead there?"""
    found: list[Monitor] = [
        RuleMonitor(name, Scope.COT, patterns=[rule]) for name, rule in organism.rules.items()
    ]
    if organism.options.of in FORMS:
        found.append(StepVerifier("steps", Scope.COT_ANSWER, task=organism.options.of))
    return found


def evaluate(
    organism: Organism[Any],
    problems: Sequence[Problem],
    collect: Collect,
    monitors: Sequence[Monitor],
) -> tuple[Labelled, list[Rollout]]:
    """Ask both arms of these problems; the labelled rows, and the rollouts for the record."""
    rollouts = [
        rollout
        for arm, asked in arms(organism, problems).items()
        for group in collect(asked, SPLITS[arm])
        for rollout in group
    ]
    return label(organism, [row(r, tokens=False) for r in rollouts], monitors), rollouts


def arms(organism: Organism[Any], problems: Sequence[Problem]) -> dict[int, list[Problem]]:
    """What each arm asks: the control arm first, if there is one."""
    asked = [organism.arms(problem) for problem in problems]
    return {arm: [a[arm] for a in asked] for arm in sorted({x for a in asked for x in a})}


def label(
    organism: Organism[Any], rows: Sequence[Mapping[str, Any]], monitors: Sequence[Monitor]
) -> Labelled:
    """The arms' rows, labelled. Rows of other splits are a mistake: filter them first."""
    arm_of = {name: arm for arm, name in ARMS.items()}
    asked = [problem_of(dict(r)) for r in rows]
    cots = [split(r["completion"]).cot for r in rows]
    verdicts = {
        m.name: score_all(
            m,
            [
                look(
                    m.scope, prompt=r["prompt"], question=r["question"], completion=r["completion"]
                )
                for r in rows
            ],
        )
        for m in monitors
    }
    return Labelled(
        x=_ints(arm_of[r["split"].rpartition("/")[2]] for r in rows),
        y=_ints(organism.behaviour(p, r["answer"]) for p, r in zip(asked, rows, strict=True)),
        z={name: flags(given) for name, given in verdicts.items()},
        s={name: scores(given) for name, given in verdicts.items()},
        correct=_ints(r["correct"] for r in rows),
        shortcut=_ints(organism.shortcut(p, cot) for p, cot in zip(asked, cots, strict=True)),
        length=_ints(map(len, cots)),
        problems=tuple(p.key for p in asked),
    )


def summary(found: Labelled) -> dict[str, Any]:
    """The numbers of one checkpoint, for the log: each a value, or null where it is undefined."""
    planted = found.x == 1
    told: dict[str, Any] = {
        "reliance": measures.reliance(found.x, found.y).value,
        "behaviour": measures.rate(found.y[planted]).value,
        "shortcut": measures.rate(found.shortcut[planted]).value,
        "accuracy_planted": measures.rate(found.correct[planted]).value,
        "accuracy_control": measures.rate(found.correct[~planted]).value,
        "cot_characters": measures.result.mean(found.length[planted], "no rollout").value,
        "rollouts": len(found.x),
    }
    for name, z in found.z.items():
        told[name] = {
            "disclosure": measures.disclosure(found.y, z).value,
            "undetected": measures.undetected_reliance(found.x, found.y, z).value,
            "true_negative_rate": measures.true_negative_rate(found.y, z).value,
        }
    return told


def _ints(values: Any) -> Ints:
    return np.array([int(v) for v in values], dtype=np.int64)
