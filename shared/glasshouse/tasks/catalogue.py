"""Tasks: problem generators with prompts and demonstrations.

    task = make_task("multiplication", {"right_digits": 1})
    problem = task.draw(randomness.stream("demo", 0))
    messages = task.messages(problem, Style.COT)

To add a task, write its class under `@register_task`, in a module that `imports` names or in an
experiment's train.py, or offer it as an entry point `glasshouse.tasks` of a package; a built-in task is
one file here and an entry of `TASKS`. `gym.<name>` is any procedural dataset of reasoning-gym (extra
`gym`). `ORGANISMS` are tasks with a planted behaviour; `make_task` knows them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.errors import TaskError, did_you_mean
from glasshouse.registry import describe_missing, find_missing, list_plugins, load_plugin
from glasshouse.tasks.arithmetic import Arithmetic
from glasshouse.tasks.base import MODES, Mode, Task, TaskOptions, task_from_options
from glasshouse.tasks.interleave import Interleave
from glasshouse.tasks.multiplication import Multiplication
from glasshouse.tasks.organisms.base import Organism
from glasshouse.tasks.organisms.catalogue import ORGANISMS
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
    "list_tasks",
    "make_example_task",
    "make_task",
    "register_task",
]


def make_task(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """Builds a task by name. Unknown names and options raise a `TaskError` that suggests the nearest."""
    if name.startswith("gym."):
        from glasshouse.tasks.gym import GymTask

        return GymTask.from_name(name, dict(options or {}))
    return task_from_options(_find_task(name), dict(options or {}))


def _find_task(name: str) -> type[Task[Any]]:
    known: dict[str, type[Task[Any]]] = {**TASKS, **ORGANISMS}
    if name in known:
        return known[name]
    for group in ("tasks", "organisms"):
        task = load_plugin(group, name)
        if task is not None:
            check_task_class(task)
            if task.name != name:
                raise TaskError(
                    f'The entry point "{name}" is the task "{task.name}"; give both the same name.'
                )
            return register_task(task)
    names = [*known, *list_plugins("tasks"), *list_plugins("organisms")]
    raise TaskError(f'There is no task "{name}".{did_you_mean(name, names)}')


def list_tasks() -> list[str]:
    """The names of all tasks, then of all organisms, those of installed packages included."""
    tasks = [*TASKS, *(name for name in list_plugins("tasks") if name not in TASKS)]
    return [*tasks, *ORGANISMS, *(n for n in list_plugins("organisms") if n not in ORGANISMS)]


def check_task_class(task: Any) -> None:
    """Raise with the names of what is missing if this is not a complete task class."""
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise TaskError(
            f"{task!r} is not a task: write a class that inherits from glasshouse.tasks.Task."
        )
    members = ("name", "description", "role", "Options", *sorted(Task.__abstractmethods__))
    if issubclass(task, Organism):
        members += tuple(sorted(Organism.__abstractmethods__ - Task.__abstractmethods__))
    if missing := find_missing(task, members):
        raise TaskError(describe_missing("task", task, missing, "glasshouse/tasks/base.py"))


def register_task(task: type[Task[Any]]) -> type[Task[Any]]:
    """Registers a task class under its `name`, for `task.name` and `glasshouse tasks`.

    Example:
        @register_task
        class Doubling(Task[DoublingOptions]):
            name = "doubling"
    """
    check_task_class(task)
    registry: dict[str, type[Any]] = ORGANISMS if issubclass(task, Organism) else TASKS
    known = {**TASKS, **ORGANISMS}.get(task.name)
    if known is not None and known.__module__.startswith("glasshouse."):
        raise TaskError(f'There is already a task "{task.name}"; choose another name.')
    registry[task.name] = task
    return task


def make_example_task(name: str) -> Task[Any]:
    """Builds a task with its `example_options`, as `glasshouse tasks` shows and validates it."""
    options = {} if name.startswith("gym.") else _find_task(name).example_options
    return make_task(name, options)
