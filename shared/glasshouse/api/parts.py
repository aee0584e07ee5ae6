"""The parts of a run by name: tasks, reward terms, penalties and monitors, built in or your own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse import monitors
from glasshouse.config import import_modules
from glasshouse.rewards.self_check import SelfCheckReport, check_task
from glasshouse.rewards.terms import Reward, get_reward
from glasshouse.tasks import Task, list_tasks, make_example_task, make_task

if TYPE_CHECKING:
    from glasshouse.monitors import Monitor
    from glasshouse.rewards.penalties import Penalty

__all__ = [
    "SelfCheckReport",
    "Task",
    "check_task",
    "import_modules",
    "list_tasks",
    "make_example_task",
    "make_monitor",
    "make_penalty",
    "make_reward",
    "make_task",
]


def make_reward(name: str) -> Reward:
    """A reward term: a function of `RewardInputs`.

    Example: `make_reward("closeness")`
    """
    return get_reward(name)


def make_penalty(name: str, task: Task[Any] | str, **options: Any) -> Penalty:
    """A penalty, as `reward.penalties` would build it.

    Example: `make_penalty("length", "sum_digits", budget=20)`
    """
    from glasshouse.rewards.penalties import Penalties

    built = make_task(task) if isinstance(task, str) else task
    return Penalties.from_config({name: options}, built).penalties[0]


def make_monitor(name: str, settings: Mapping[str, Any] | str | Path | None = None) -> Monitor:
    """A monitor from its settings, as in `evaluate.monitors`, or a fitted one from its folder.

    Example: `make_monitor("hint", {"kind": "rule", "keywords": ["hint", "key"]})`
    """
    if isinstance(settings, str | Path):
        return monitors.load_monitor(Path(settings))
    return monitors.make_monitor(name, settings or {})
