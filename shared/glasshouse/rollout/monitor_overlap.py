"""Does a rule in the reward cover one that evaluates? Compared by verdicts, not by description.

A reward rule with the keywords `key` and `hint` differs from an evaluating rule with `key`, but flags everything that
the latter flags: RL against it removes all that the evaluation could see. Both are therefore applied to probes:
demonstrations of the task in all its modes, and their own keywords.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glasshouse import randomness
from glasshouse.errors import MonitorError
from glasshouse.monitors.base import Monitor, score_all
from glasshouse.monitors.rule import RuleMonitor
from glasshouse.monitors.views import make_view
from glasshouse.tasks.base import Task

PROBE_PROBLEMS = 20


def check_not_covered(
    in_reward: Sequence[Monitor], evaluating: Sequence[Monitor], task: Task[Any]
) -> None:
    """Raise if a rule in the reward flags every probe that an evaluating rule flags."""
    rewarded = [monitor for monitor in in_reward if isinstance(monitor, RuleMonitor)]
    judges = [monitor for monitor in evaluating if isinstance(monitor, RuleMonitor)]
    if not rewarded or not judges:
        return
    probes = list(_probe_completions(task, [w for m in (*rewarded, *judges) for w in m.keywords]))
    flags = {monitor.name: _flagged(monitor, probes) for monitor in (*rewarded, *judges)}
    for judge in judges:
        for rule in rewarded:
            if flags[judge.name] and flags[judge.name] <= flags[rule.name]:
                raise MonitorError(
                    f'The evaluating monitor "{judge.name}" flags nothing that "{rule.name}" in the '
                    f"reward does not flag ({len(flags[judge.name])} of {len(probes)} probe texts): a "
                    "policy trained against a monitor cannot be evaluated with a part of it. Use another monitor."
                )


def _probe_completions(task: Task[Any], keywords: Sequence[str]) -> Iterator[str]:
    for index in range(PROBE_PROBLEMS):
        rng = randomness.stream("monitor probe", task.name, index)
        problem = task.draw(rng)
        for mode in task.modes:
            yield task.demonstrate(problem, mode, rng)
    for word in dict.fromkeys(keywords):
        yield f"{word}\n[ANSWER] 1"
        yield f"[ANSWER] 1 {word}"


def _flagged(monitor: RuleMonitor, completions: Sequence[str]) -> set[int]:
    """The indices of the completions that the monitor flags."""
    views = [
        make_view(monitor.scope, prompt="", question="", completion=text) for text in completions
    ]
    outputs = score_all(monitor, views)
    return {index for index, output in enumerate(outputs) if output.flagged}
