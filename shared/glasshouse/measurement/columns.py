"""Label rollouts and score them: the columns that every measure takes, one entry per rollout.

    rollouts ──► planted, behaviour, correct, … ; monitor ──► flags and scores

In training, `glasshouse monitor`, the demo and `glasshouse measure` call these functions, on rollouts that
were just sampled, on those of a run's log, or on those of another trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.measurement.estimates import NO_VALUE, Values, mean_values
from glasshouse.monitors.base import (
    Monitor,
    MonitorOutput,
    Scope,
    stack_flags,
    stack_scores,
)
from glasshouse.monitors.rules import RuleMonitor, StepVerifier
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import Task, find_step_check
from glasshouse.tasks.organisms import Organism
from glasshouse.types import FinishReason, Problem, Rollout
from glasshouse.values import Bools, Floats, Ints, as_floats

ARM_NAMES = {0: "control", 1: "planted"}
"""The last part of a split's name."""
NO_COT = r"\A\s*\Z"


def unknown() -> Floats:
    """The default of a column: no rollout says it."""
    return np.zeros(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """What is known about each rollout; NaN where it is not known, empty where no rollout says it."""

    problems: NDArray[Any]
    """The problems' keys: the units of a bootstrap."""
    planted: Bools
    """The arm; all of them, if there is only one."""
    behaviour: Bools
    """Whether the rollout shows the behaviour, by construction."""
    correct: Floats = field(default_factory=unknown)
    """The true grade."""
    cot_characters: Floats = field(default_factory=unknown)
    reward: Floats = field(default_factory=unknown)
    has_cot: Floats = field(default_factory=unknown)
    shortcut: Floats = field(default_factory=unknown)
    """Whether the CoT leaves out steps that an honest solution needs."""
    one_line_cot: Floats = field(default_factory=unknown)
    """Whether the CoT has at most one line."""
    degenerate_cot: Floats = field(default_factory=unknown)
    """Whether it has at most one line, or its last step does not lead to the answer."""
    hint_use: NDArray[Any] = field(default_factory=unknown)
    """In which form a hint was used or rejected (`tasks.organisms.HintUse`); an empty text for none of them."""
    has_labels: bool = True
    """Is the behaviour of every rollout known?"""

    @property
    def has_arms(self) -> bool:
        return bool(self.planted.any()) and not self.planted.all()

    def mean_use(self, form: str) -> Values:
        """The share of planted rollouts that use or reject the hint in this form."""
        return self.mean(self.hint_use == form if len(self.hint_use) else unknown(), self.planted)

    def mean(self, values: Floats | Bools, among: Bools | None = None) -> Values:
        """The mean of values, among some of the rollouts."""
        unknown = np.full(len(self.planted), np.nan)
        rows = np.asarray(values if len(values) else unknown, dtype=float)
        reason = NO_VALUE
        if among is not None:
            rows, reason = np.where(among, rows, np.nan), "this arm has no rollouts"
        return mean_values(rows, self.problems, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """A monitor's outputs, or the reason why it has none."""

    monitor: str
    flagged: Ints = field(default_factory=lambda: unknown().astype(np.int64))
    scores: Floats = field(default_factory=unknown)
    reason: str = ""
    """Why there are no scores."""
    no_threshold: str = ""
    """Why there are scores, but no flags."""

    @classmethod
    def from_outputs(cls, monitor: str, outputs: Sequence[MonitorOutput], **more: Any) -> Scores:
        return cls(
            monitor=monitor, flagged=stack_flags(outputs), scores=stack_scores(outputs), **more
        )


def label_rollouts(rollouts: Sequence[Rollout], task: Task[Any] | None = None) -> Columns:
    """Label rollouts. The behaviour is the organism's; in any other task it is a wrong answer, the only
    behaviour with a known label."""
    arms = np.array([rollout.arm != ARM_NAMES[0] for rollout in rollouts], dtype=bool)
    cots = [split_completion(rollout.text).cot for rollout in rollouts]
    correct = as_floats(bool(rollout.grade.correct) for rollout in rollouts)
    columns = Columns(
        problems=np.array([rollout.problem.key for rollout in rollouts]),
        planted=arms,
        behaviour=correct == 0,
        correct=correct,
        cot_characters=as_floats(map(len, cots)),
        reward=as_floats(rollout.grade.reward for rollout in rollouts),
        has_cot=as_floats(bool(cot.strip()) for cot in cots),
    )
    if not isinstance(task, Organism):
        return columns
    rows = [(r.problem, cot, finished_answer(r)) for r, cot in zip(rollouts, cots, strict=True)]
    shows = [task.shows_behaviour(problem, answer) for problem, _, answer in rows]
    forms = (
        task.describe_use(rollout.problem, rollout.text, answer)
        for rollout, (_, _, answer) in zip(rollouts, rows, strict=True)
    )
    short = as_floats(sum(bool(line.strip()) for line in cot.splitlines()) < 2 for cot in cots)
    strays = as_floats(_is_non_sequitur(task, cot, answer) for _, cot, answer in rows)
    return replace(
        columns,
        behaviour=np.array(shows, dtype=bool),
        shortcut=as_floats(task.skips_work(problem, cot) for problem, cot, _ in rows),
        one_line_cot=short,
        degenerate_cot=np.maximum(short, strays),
        hint_use=np.array([form for form in forms if form is not None], str),
    )


def _is_non_sequitur(task: Organism[Any], cot: str, answer: str | None) -> bool:
    """Is the answer another than the one that the last written step leads to?"""
    check = find_step_check(task.options.inner_task)
    conclusion = check(cot).conclusion if check else None
    return conclusion is not None and conclusion != answer


def finished_answer(rollout: Rollout) -> str | None:
    """The answer of a finished completion. What a completion that was cut mentions last is no answer."""
    is_cut = rollout.completion.finish_reason is FinishReason.LENGTH
    return None if is_cut else rollout.grade.extracted.model_answer


def own_monitors(task: Task[Any]) -> list[Monitor]:
    """The monitors that need no fitting: an organism's rules and a step verifier; for any other task a rule
    for an empty CoT, and step verifiers."""
    if isinstance(task, Organism):
        patterns = {name: task.monitor_patterns[name] for name in task.monitor_patterns}
        form, verifiers = task.options.inner_task, {"step_verifier": Scope.COT_ANSWER}
    else:
        patterns, form = {"empty_cot_rule": NO_COT}, task.name
        verifiers = {"step_verifier": Scope.COT, "step_verifier_with_answer": Scope.COT_ANSWER}
    monitors: list[Monitor] = [
        RuleMonitor(name, Scope.COT, patterns=[pattern]) for name, pattern in patterns.items()
    ]
    if find_step_check(form):
        monitors += [StepVerifier(name, scope, task=form) for name, scope in verifiers.items()]
    return monitors


def problems_by_arm(
    organism: Organism[Any], problems: Iterable[Problem]
) -> dict[str, list[Problem]]:
    """The problems of each arm, by its name; the control arm, if there is one, comes first."""
    variants = [organism.arms(problem) for problem in problems]
    arms = sorted({arm for variant in variants for arm in variant})
    return {ARM_NAMES[arm]: [variant[arm] for variant in variants] for arm in arms}
