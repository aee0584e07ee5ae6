"""Tasks: problem generators with prompts and demonstrations.

    task = make_task("multiplication", {"right_digits": 1})
    problem = task.draw(randomness.stream("demo", 0))
    messages = task.messages(problem, Style.COT)

To add a task, write its class under `@register_task`, in a module that `imports` names or in an
experiment's train.py; a built-in task is one file here and an entry of `TASKS`. `gym.<name>` is any
procedural dataset of reasoning-gym (extra `gym`). `ORGANISMS` are tasks with a planted behaviour;
`make_task` knows them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.errors import TaskError, did_you_mean
from glasshouse.tasks.arithmetic import Arithmetic
from glasshouse.tasks.base import MODES, Mode, Task, TaskOptions, task_from_options
from glasshouse.tasks.interleave import Interleave
from glasshouse.tasks.multiplication import Multiplication
from glasshouse.tasks.organisms import ORGANISMS, Organism
from glasshouse.tasks.reverse_digits import ReverseDigits
from glasshouse.tasks.sum_digits import SumDigits

TASKS: dict[str, type[Task[Any]]] = {
    t.name: t for t in (SumDigits, ReverseDigits, Arithmetic, Multiplication, Interleave)
}

__all__ = [
    "MODES",
    "ORGANISMS",
    "TASKS",
    "Mode",
    "Organism",
    "Task",
    "TaskOptions",
    "make_example_task",
    "make_task",
    "register_task",
]


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """Builds a task by name. Unknown names and options raise a `TaskError` that suggests the nearest."""
    if name.startswith("gym."):
        from glasshouse.tasks.gym import GymTask

        return GymTask.from_name(name, dict(options or {}))
    known = {**TASKS, **ORGANISMS}
    if name not in known:
        raise TaskError(f'There is no task "{name}".{did_you_mean(name, known)}')
    return task_from_options(known[name], dict(options or {}))


def register_task(task: type[Task[Any]]) -> type[Task[Any]]:
    """Registers a task class under its `name`, for `task.name` and `glasshouse tasks`.

    Example:
        @register_task
        class Doubling(Task[DoublingOptions]):
            name = "doubling"
    """
    registry: dict[str, type[Any]] = ORGANISMS if issubclass(task, Organism) else TASKS
    known = {**TASKS, **ORGANISMS}.get(task.name)
    if known is not None and known.__module__.startswith("glasshouse."):
        raise TaskError(f'There is already a task "{task.name}"; choose another name.')
    registry[task.name] = task
    return task


def make_example_task(name: str) -> Task[Any]:
    """Builds a task with its `example_options`, as `glasshouse tasks` shows and validates it."""
    known = {**TASKS, **ORGANISMS}
    return make_task(name, known[name].example_options if name in known else {})
