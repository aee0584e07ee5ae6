"""Tasks: what is asked. One file a task; adding one is a file and a line in `TASKS`.

    task = make("multiplication", {"right_digits": 1})
    problem = task.draw(randomness.stream("demo", 0))
    messages = task.messages(problem, Style.COT)

`gym.<name>` is any procedural task of reasoning-gym (extra `gym`). `ORGANISMS` are tasks with a
planted behaviour: `make` knows them by name too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glasshouse.errors import TaskError, nearest
from glasshouse.tasks.arithmetic import Arithmetic
from glasshouse.tasks.base import MODES, Mode, Task, TaskOptions, built
from glasshouse.tasks.interleave import Interleave
from glasshouse.tasks.multiplication import Multiplication
from glasshouse.tasks.organisms import ORGANISMS, Organism
from glasshouse.tasks.reverse_digits import ReverseDigits
from glasshouse.tasks.sum_digits import SumDigits

TASKS: Mapping[str, type[Task[Any]]] = {
    t.name: t for t in (SumDigits, ReverseDigits, Arithmetic, Multiplication, Interleave)
}

__all__ = ["MODES", "ORGANISMS", "TASKS", "Mode", "Organism", "Task", "TaskOptions", "make"]


def make(name: str, options: Mapping[str, Any] | None = None) -> Task[Any]:
    """A task by name at a difficulty; an unknown name or option is an error with the nearest."""
    if name.startswith("gym."):
        from glasshouse.tasks.gym import GymTask

        return GymTask.named(name, dict(options or {}))
    known = {**TASKS, **ORGANISMS}
    if name not in known:
        raise TaskError(f'There is no task "{name}".{nearest(name, known)}')
    return built(known[name], dict(options or {}))
