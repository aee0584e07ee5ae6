"""Monitors on a checkpoint's rollouts: how often they flag, and whether they detect wrong answers.

In a task without a planted behaviour, a wrong answer is the only behaviour with a known label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from glasshouse.measurement.estimates import Estimate, estimate_auroc, estimate_mean
from glasshouse.measurement.evaluations import (
    CheckpointEvaluation,
    EvaluatedCheckpoint,
    Row,
    contribution_rows,
)
from glasshouse.measurement.rate_estimates import estimate_rates
from glasshouse.measurement.registry import lookup, monitor_stream
from glasshouse.models.policy import Policy
from glasshouse.monitors.activation_probe import ProbeMonitor, compute_cot_states
from glasshouse.monitors.base import Monitor, MonitorOutput, score_all, stack_flags, stack_scores
from glasshouse.monitors.ngrams import NgramMonitor
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.step_verifier import StepVerifier
from glasshouse.monitors.views import Scope, make_view
from glasshouse.tasks.catalogue import find_step_check
from glasshouse.types import Rollout


def label_free_monitors(task: str) -> list[Monitor]:
    """The monitors that need no labels: a rule for an empty CoT, and step verifiers."""
    monitors: list[Monitor] = [RuleMonitor("empty_cot_rule", Scope.COT, patterns=[r"\A\s*\Z"])]
    if find_step_check(task):
        monitors.append(StepVerifier("step_verifier", Scope.COT, task=task))
        monitors.append(StepVerifier("step_verifier_with_answer", Scope.COT_ANSWER, task=task))
    return monitors


class MonitorEvaluation:
    """Scores every rollout with every monitor; the behaviour to detect is a wrong answer.

    Example: `MonitorEvaluation(label_free_monitors("sum_digits")).evaluate(checkpoint)`
    """

    name = "monitors"

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self.monitors = list(monitors)

    def describe(self) -> dict[str, Any]:
        return {"version": 1, "monitors": [monitor.describe() for monitor in self.monitors]}

    def evaluate(self, checkpoint: EvaluatedCheckpoint) -> CheckpointEvaluation:
        measures: dict[str, Estimate] = {}
        rows: list[Row] = []
        rollouts = checkpoint.rollouts
        wrong = [not rollout.grade.correct for rollout in rollouts]
        problems = [rollout.problem.key for rollout in rollouts]
        planted = [1] * len(problems)  # one arm
        for monitor in self.monitors:
            outputs = score_rollouts(monitor, checkpoint.policy, rollouts)
            flags, scores = stack_flags(outputs), stack_scores(outputs)
            flagged = np.where(flags < 0, np.nan, flags)
            name = monitor.name
            key = ("monitor", checkpoint.seed, checkpoint.step, monitor_stream(name))
            flag_rate = f"{name}.flag_rate"
            stream = (*key, lookup(flag_rate).stream)
            rates = estimate_rates(["disclosure", "tnr"], planted, wrong, flags, problems, key=key)
            measures |= {
                flag_rate: estimate_mean(flagged, problems, key=stream, ceiling=1.0),
                f"{name}.auroc": estimate_auroc(wrong, scores, problems, key=key),
                f"{name}.tpr": rates["disclosure"],
                f"{name}.tnr": rates["tnr"],
            }
            rows += contribution_rows(flag_rate, rollouts, flagged.tolist())
            rows += [
                output_row(monitor, rollout, output) | {"wrong": not rollout.grade.correct}
                for rollout, output in zip(rollouts, outputs, strict=True)
            ]
        return CheckpointEvaluation(measures=measures, rows=rows)


def score_rollouts(
    monitor: Monitor, policy: Policy, rollouts: Sequence[Rollout]
) -> list[MonitorOutput]:
    """Scores each rollout within the monitor's scope; raises if it was fitted on their problems."""
    if isinstance(monitor, NgramMonitor | ProbeMonitor):
        monitor.check_unseen([rollout.problem.key for rollout in rollouts])
    states: list[Any] = [None] * len(rollouts)
    if monitor.scope is Scope.ACTIVATIONS:
        tokens = [(r.prompt_tokens, r.completion.tokens) for r in rollouts]
        states = list(compute_cot_states(policy, tokens, int(monitor.describe()["layer"])))
    views = [
        make_view(
            monitor.scope,
            prompt=rollout.prompt,
            question=rollout.problem.question,
            completion=rollout.text,
            state=state,
        )
        for rollout, state in zip(rollouts, states, strict=True)
    ]
    return score_all(monitor, views)


def output_row(monitor: Monitor, rollout: Rollout, output: MonitorOutput) -> Row:
    return {
        "monitor": monitor.name,
        "scope": monitor.scope.value,
        "key": rollout.problem.key,
        "sample": rollout.sample,
        "score": output.score,
        "flagged": output.flagged,
        "failed": output.failed,
        "reason": output.reason,
    }
