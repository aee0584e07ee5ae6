"""From a configuration to a run's parts, with what types alone cannot check."""

from __future__ import annotations

from typing import Any

import torch

from glasshouse import randomness, tasks
from glasshouse.config import Config
from glasshouse.data import Fixed, Fresh, Split, Stream, UsedUp, files
from glasshouse.errors import ConfigError, TaskError
from glasshouse.generate import Sampling
from glasshouse.learn import algorithm
from glasshouse.models import Policy
from glasshouse.monitorability.organisms import monitors_of
from glasshouse.monitors import Monitor
from glasshouse.monitors.factory import make as make_monitor
from glasshouse.rewards.penalties import Pressures
from glasshouse.rewards.terms import check as check_rewards


def settle(threads: int) -> None:
    """Torch as every process of a run has it: its threads, and the same bits each time."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Empty tensors need no filling, since nothing reads them before they are written: 6 % of a step.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


def with_ranges(config: Config, policy: Policy) -> Config:
    """The configuration with the difficulty filled in that the model was shown, unless it sets one.
    An organism's options are laid over what was shown: one may choose a rung of a base's ladder
    without repeating what carries it."""
    if config.task.options and config.task.name not in tasks.ORGANISMS:
        return config
    shown = policy.task_options(config.task.name, config.task.style.value)
    options = {**shown, **config.task.options}
    return config.model_copy(update={"task": config.task.model_copy(update={"options": options})})


def check(config: Config) -> None:
    """What types alone cannot say."""
    check_rewards(config.reward.terms, config.reward.combine)
    if config.reward.shuffle and config.reward.random:
        raise ConfigError("reward.shuffle and reward.random are two controls; set one of them.")
    least = algorithm(config.learn.algorithm).min_group
    if config.generate.group_size < least:
        raise ConfigError(
            f"{config.learn.algorithm} compares completions of one problem: "
            f"generate.group_size must be at least {least}, not {config.generate.group_size}."
        )
    if (
        config.max_offpolicy_steps
        and algorithm(config.learn.algorithm).dynamic_sampling
        and config.learn.max_resamples
    ):
        raise ConfigError(
            f"max_offpolicy_steps: 1 generates a step ahead, and {config.learn.algorithm} would refill it with newer "
            "weights' completions; set learn.max_resamples=0, or max_offpolicy_steps=0."
        )
    if config.max_offpolicy_steps and config.learn.importance_cap == 0:
        raise ConfigError(
            "max_offpolicy_steps: 1 learns from completions of older weights, which learn.importance_cap=0 would not "
            "correct for; leave it empty, or set max_offpolicy_steps=0."
        )
    if config.generate.temperature == 0 and config.steps:
        raise ConfigError(
            "generate.temperature is 0: greedy completions are all alike and teach nothing."
        )


def check_context(config: Config, policy: Policy, task: tasks.Task[Any]) -> None:
    """A typical prompt and the longest completion must fit into the model's context."""
    problem = task.draw(randomness.stream("context", config.seed))
    _, prompt = policy.prompt(task.messages(problem, config.task.style))
    if len(prompt) + config.generate.max_tokens > policy.context:
        raise ConfigError(
            f"A prompt of {len(prompt)} tokens and generate.max_tokens = {config.generate.max_tokens} exceed "
            f"the model's context of {policy.context} tokens; lower generate.max_tokens."
        )


def evaluating(config: Config, task: tasks.Task[Any]) -> list[Monitor]:
    """The monitors that an organism is evaluated with: its own, and the configuration's."""
    own = monitors_of(task) if isinstance(task, tasks.Organism) else []
    return own + [make_monitor(name, given) for name, given in config.evaluate.monitors.items()]


def pressures(config: Config, task: tasks.Task[Any]) -> Pressures:
    """What is taken off the reward; a monitor that also evaluates is refused."""
    return Pressures.of(config.reward.penalties, task, evaluating(config, task))


def stream(config: Config, task: tasks.Task[Any]) -> Stream:
    """Where training problems come from."""
    data = config.data
    if data.source == "fresh":
        if data.file:
            raise ConfigError("data.file is set, but data.source is fresh; set data.source=fixed.")
        stages = curriculum(config)
        first = stages.pop(0, task)
        return Fresh(first, Split.TRAIN, config.seed, data.on_exhausted, stages)
    if config.task.schedule:
        raise ConfigError("task.schedule draws new problems: it needs data.source=fresh.")
    if data.file:
        return Fixed(files.read(data.file.format(task=task.name)), config.seed)
    drawn = Fresh(task, Split.TRAIN, config.seed, when_used_up="stop")
    try:
        return Fixed(drawn.take(data.size), config.seed)
    except UsedUp:
        raise ConfigError(
            f"data.size is {data.size:,}, but {task.name} has only {drawn.drawn:,} training problems "
            "at these options. Lower data.size, or make the space larger (task.options)."
        ) from None


def curriculum(config: Config) -> dict[int, tasks.Task[Any]]:
    """The task at each stage of its schedule, by the step from which it holds."""
    stages = {}
    for step, options in sorted(config.task.schedule.items()):
        if step < 0:
            raise ConfigError(f"task.schedule has a step {step}; steps begin at 0.")
        try:
            stages[step] = tasks.make(config.task.name, {**config.task.options, **options})
        except TaskError as error:
            raise ConfigError(f"task.schedule, step {step}: {error}") from None
    return stages


def sampling(config: Config) -> Sampling:
    """How training completions are drawn."""
    g = config.generate
    return Sampling(
        max_tokens=g.max_tokens,
        temperature=g.temperature,
        top_k=g.top_k,
        top_p=g.top_p,
        min_p=g.min_p,
        stop=g.stop,
    )
