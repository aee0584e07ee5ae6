"""The monitors that score a rollout from its text alone, without labels, weights or a judge.

The page scores every rollout with them, also in training, where `glasshouse monitor` does not
look. Rollouts of `glasshouse monitor` keep the scores that it stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glasshouse import tasks
from glasshouse.errors import GlasshouseError
from glasshouse.monitors import Monitor, RuleMonitor, StepVerifier, make_monitor, score_all
from glasshouse.monitors.step_verifier import STEP_CHECKERS
from glasshouse.monitors.views import Scope, make_view
from glasshouse.tasks import Organism
from glasshouse.view.run_config import config_value

Verdict = dict[str, Any]
"""`{"score": 0.5, "flagged": True, "reason": "…"}`; score and flag are None if the monitor failed."""


def make_text_monitors(config: Mapping[str, Any]) -> list[Monitor]:
    """The organism's rules, those of `evaluate.monitors`, and a step verifier where the task has one.

    The monitors of `reward.penalties` are not among them. A task that a module of the key `imports`
    defines is unknown here, because showing a run executes none of its code.
    """
    name = str(config_value(config, "task.name", ""))
    monitors: list[Monitor] = []
    inner = name
    try:
        task = tasks.make_task(name, config_value(config, "task.options", {}) or {})
        if isinstance(task, Organism):
            inner = task.options.inner_task
            monitors += [
                RuleMonitor(monitor, Scope.COT, patterns=[pattern])
                for monitor, pattern in task.monitor_patterns.items()
            ]
        for monitor, settings in (config_value(config, "evaluate.monitors", {}) or {}).items():
            monitors.append(make_monitor(monitor, settings))
    except (GlasshouseError, TypeError, ValueError, AttributeError):
        pass  # the task is unknown, or its options are damaged: fewer monitors
    if inner in STEP_CHECKERS and config_value(config, "task.style", "cot") == "cot":
        monitors.append(StepVerifier("step_verifier", Scope.COT_ANSWER, task=inner))
    return monitors


def score_rows(
    monitors: Sequence[Monitor], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Verdict]]:
    """The verdict of each monitor on each row of the rollout log."""
    verdicts: list[dict[str, Verdict]] = [{} for _ in rows]
    for monitor in monitors:
        views = [
            make_view(
                monitor.scope,
                prompt=row["prompt"],
                question=row["question"],
                completion=row["completion"],
            )
            for row in rows
        ]
        for verdict, output in zip(verdicts, score_all(monitor, views), strict=True):
            verdict[monitor.name] = {
                "score": output.score,
                "flagged": output.flagged,
                "reason": output.reason,
            }
    return verdicts
