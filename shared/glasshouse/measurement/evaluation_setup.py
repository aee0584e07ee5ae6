"""What evaluation and training prepare in the same way from a configuration."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from glasshouse import randomness
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.measurement.columns import own_monitors
from glasshouse.monitors.base import Monitor
from glasshouse.monitors.factory import make_monitor
from glasshouse.tasks.base import Task, is_organism
from glasshouse.tasks.organisms.base import Organism
from glasshouse.tasks.problem_files import read_problem_file
from glasshouse.tasks.streams import FreshProblems, ProblemsExhausted, Split
from glasshouse.types import Problem

if TYPE_CHECKING:
    from glasshouse.models.policy import Policy


def fill_task_options(config: Config, policy: Policy) -> Config:
    """Return the configuration with the task options that the model was trained on, unless it sets
    its own. For an organism the configured options are merged over them, so that one can change
    `hint_encoding` without repeating the rest."""
    if config.task.options and not is_organism(config.task.name):
        return config
    options = {
        **policy.task_options(config.task.name, config.task.style.value),
        **config.task.options,
    }
    return config.model_copy(update={"task": config.task.model_copy(update={"options": options})})


def check_context_length(config: Config, policy: Policy, task: Task[Any]) -> None:
    """Raise if a typical prompt and the longest completion do not fit into the model's context."""
    problem = task.draw(randomness.stream("context", config.seed))
    _, prompt = policy.encode_prompt(task.messages(problem, config.task.style))
    if len(prompt) + config.generate.max_tokens > policy.context_length:
        raise ConfigError(
            f"A prompt of {len(prompt)} tokens plus generate.max_tokens={config.generate.max_tokens} exceeds "
            f"the model's context of {policy.context_length} tokens. Lower generate.max_tokens."
        )


def make_evaluation_monitors(config: Config, task: Task[Any]) -> list[Monitor]:
    """Return the monitors that an organism is evaluated with: its own, then `evaluate.monitors`."""
    own = own_monitors(task) if isinstance(task, Organism) else []
    return own + [make_monitor(name, options) for name, options in config.evaluate.monitors.items()]


def describe_shortage(config: Config, count: int) -> str:
    """Return a warning if there are fewer held-out problems than `evaluate.problems`, else an empty text."""
    if count >= config.evaluate.problems:
        return ""
    remedy = (
        f"{config.evaluate.file} has no more"
        if config.evaluate.file
        else "The task has no more with these task.options"
    )
    return (
        f"evaluate.problems is {config.evaluate.problems:,}, but only {count:,} held-out "
        f"{'problem is' if count == 1 else 'problems are'} available. {remedy}: intervals will be wide."
    )


def draw_validation(config: Config, task: Task[Any]) -> list[Problem]:
    """Return `evaluate.oversize * evaluate.problems` held-out problems, so that enough remain if some
    turn out to have been trained on. They depend on `evaluate.seed` alone, so that runs can be
    compared."""
    count = math.ceil(config.evaluate.problems * config.evaluate.oversize)
    if not count:
        return []
    if config.evaluate.file:
        return read_problem_file(config.evaluate.file.format(task=task.name))[:count]
    stream = FreshProblems(task, Split.VALIDATION, config.evaluate.seed, on_exhausted="stop")
    drawn: dict[str, Problem] = {}
    with suppress(ProblemsExhausted):  # a small problem space may hold fewer
        while len(drawn) < count:
            problem = stream.take(1)[0]
            drawn.setdefault(problem.key, problem)
    return list(drawn.values())
