"""Tasks by name.

    task = make_task("multiplication", {"right_digits": 1})
    problem = task.draw(randomness.stream("demo", 0))
    messages = task.messages(problem, Style.COT)

A task is a class under `@task("name")` (base.py): built in, in a module that `imports` names, in an
experiment's train.py, or offered by an installed package. `gym.<name>` is any procedural dataset of
reasoning-gym (extra `gym`). Organisms are tasks with a planted behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from glasshouse.tasks.base import Task, task, task_from_options
from glasshouse.tasks.organisms.base import Organism
from glasshouse.tasks.step_checks import StepCheck


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """Build a task by name. Unknown names and options raise a `TaskError` that suggests the nearest."""
    if name.startswith("gym."):
        from glasshouse.tasks.gym import GymTask

        return GymTask.from_name(name, dict(options or {}))
    return task_from_options(task.get(name), dict(options or {}))


def list_tasks(*, organisms: bool | None = None) -> list[str]:
    """The names of all tasks, organisms last; or only those that are organisms, or are not."""
    names = sorted(task, key=is_organism)
    return [name for name in names if organisms is None or is_organism(name) == organisms]


def is_organism(name: str) -> bool:
    """Whether this is the name of a task with a planted behaviour."""
    return name in task and issubclass(task.get(name), Organism)


def find_step_check(name: str) -> Callable[[str], StepCheck] | None:
    """What recomputes the steps that a task writes; None if the task is unknown or has no such check."""
    if name not in task or task.get(name).check_steps("") is None:
        return None
    return task.get(name).check_steps  # type: ignore[return-value]


def make_example_task(name: str) -> Task[Any]:
    """Build a task with its `example_options`, as `glasshouse tasks` shows and validates it."""
    options = {} if name.startswith("gym.") else task.get(name).example_options
    return make_task(name, options)
