"""The monitors of a run that need only the text of a rollout. Showing a run executes none of its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glasshouse.errors import GlasshouseError
from glasshouse.monitors.base import Monitor, Scope, score_all, view_of_parts
from glasshouse.monitors.factory import make_monitor
from glasshouse.monitors.rules import RuleMonitor, StepVerifier
from glasshouse.tables import get_field
from glasshouse.tasks.answers import split_completion
from glasshouse.tasks.base import find_step_check, make_task
from glasshouse.tasks.organisms import Organism

UNUSABLE = (GlasshouseError, TypeError, ValueError, AttributeError, KeyError)
"""What damaged options of a task or monitor may raise."""
RUN_A_MODEL = ("judge", "embedder", "probe", "saved")
"""Kinds of monitors."""
Verdict = dict[str, Any]
"""`{"score": 0.5, "flagged": True, "reason": "…"}`; score and flag are None if the monitor failed."""


def make_text_monitors(config: Mapping[str, Any]) -> tuple[list[Monitor], list[str]]:
    """The organism's rules, those of `evaluate.monitors`, and a step verifier where the task has one;
    and a sentence about each that cannot be applied.

    The monitors of `reward.penalties` are not among them, nor those that run a model or ask an endpoint. A task that a
    module of the key `imports` defines is unknown here, because showing a run executes none of its code.
    """
    name = str(get_field(config, "task.name", ""))
    monitors: list[Monitor] = []
    problems: list[str] = []
    inner = name
    try:
        task = make_task(name, get_field(config, "task.options", {}))
        if isinstance(task, Organism):
            inner = task.options.inner_task
            monitors += [
                RuleMonitor(monitor, Scope.COT, patterns=[pattern])
                for monitor, pattern in task.monitor_patterns.items()
            ]
    except UNUSABLE as error:
        if get_field(config, "imports", None):
            reason = "a module of the key imports may define it, and showing a run executes no code"
        else:
            reason = describe_error(error)
        problems.append(f"The monitors of the task {name!r} are not applied: {reason}.")
    for monitor, options in get_field(config, "evaluate.monitors", {}).items():
        try:
            if options.get("kind") not in RUN_A_MODEL:
                monitors.append(make_monitor(monitor, options))
        except UNUSABLE as error:
            problems.append(f"evaluate.monitors.{monitor} is not applied: {describe_error(error)}.")
    if find_step_check(inner) and get_field(config, "task.style", "cot") == "cot":
        monitors.append(StepVerifier("step_verifier", Scope.COT_ANSWER, task=inner))
    return monitors, problems


def describe_error(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def score_rows(
    monitors: Sequence[Monitor], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Verdict]]:
    """The verdict of each monitor on each row of the rollout log."""
    verdicts: list[dict[str, Verdict]] = [{} for _ in rows]
    splits = [split_completion(row["text"]) for row in rows]
    parts = [{"cot": split.cot, "answer": split.answer} for split in splits]
    for monitor in monitors:
        views = [
            view_of_parts(monitor.scope, {**row, **own})
            for row, own in zip(rows, parts, strict=True)
        ]
        for verdict, output in zip(verdicts, score_all(monitor, views), strict=True):
            names = ("score", "flagged", "reason")
            verdict[monitor.name] = {name: getattr(output, name) for name in names}
    return verdicts
