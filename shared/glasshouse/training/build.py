"""Check a configuration, build the stream of training problems from it, and describe where problems come from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glasshouse.config.schema import Config, find_greedy_setting, find_unlikely_settings
from glasshouse.errors import ConfigError, TaskError
from glasshouse.files import compute_checksum
from glasshouse.generate.engines import engine
from glasshouse.learn.losses import get_algorithm
from glasshouse.measurement.contamination import check_overlap
from glasshouse.measurement.evaluate import (
    describe_shortage,
    draw_validation,
    fill_task_options,
    make_evaluation_monitors,
    make_penalties,
)
from glasshouse.models.folders import read_card
from glasshouse.registry import import_modules
from glasshouse.rollout.grading import validate_reward_terms
from glasshouse.tasks.base import Task, make_task
from glasshouse.tasks.dataset import DatasetTask
from glasshouse.tasks.problem_files import describe_unchecked, read_task_problems
from glasshouse.tasks.streams import (
    FixedProblems,
    FreshProblems,
    ProblemsExhausted,
    ProblemStream,
    Split,
    assign_split,
)
from glasshouse.track.trackers import validate_trackers
from glasshouse.types import Problem

TEST_PROBLEMS = 1000


def check_config(config: Config) -> list[str]:
    """Raise what `TrainingRun` would raise about a name, a combination of keys or a problem file, without loading
    the model; return its warnings. Of a model on the hub, only the form of its name is checked."""
    import_modules(config.imports)
    validate_trackers(config.trackers)
    config = fill_task_options(config, read_card(config.model))
    task = make_task(config.task.name, config.task.options)
    validate_config(config)
    make_penalties(config, task, make_evaluation_monitors(config, task))
    make_curriculum(config)
    problems = make_problem_stream(config, task) if config.data.file else None
    return find_warnings(config, problems, draw_validation(config, task))


def find_warnings(
    config: Config, problems: ProblemStream | None, validation: list[Problem]
) -> list[str]:
    """Return what is probably a mistake in the settings or in the training file; raise if a run could not be evaluated
    at its end."""
    warnings = [*find_unlikely_settings(config), describe_shortage(config, len(validation))]
    training = problems.problems if isinstance(problems, FixedProblems) else []
    warnings.append(describe_unchecked([*training, *validation]))
    if config.data.file and isinstance(problems, FixedProblems):
        count, groups = len(problems.problems), config.data.groups_per_step
        if count < groups:
            warnings.append(
                f"{config.data.file} has {count} problems, fewer than data.groups_per_step={groups}: every step asks "
                "the same problems several times."
            )
        warnings.append(check_overlap(problems.problems, validation, config.evaluate.problems))
    return [text for text in warnings if text]


def validate_config(config: Config) -> None:
    """Check what the types of the schema cannot express."""
    engine.check_name(config.generate.engine)
    validate_reward_terms(config.reward.terms)
    for problem in find_contradictions(config):
        raise ConfigError(problem)


def find_contradictions(config: Config) -> Iterator[str]:
    """Say which keys exclude each other, and what to set."""
    learn, offpolicy, name = config.learn, config.max_offpolicy_steps, config.learn.algorithm
    algorithm = get_algorithm(name)
    if config.reward.shuffle and config.reward.random:
        yield "reward.shuffle and reward.random exclude each other; set one of them."
    if config.generate.group_size < algorithm.min_group:
        yield (
            f"{name} compares the completions of one problem: generate.group_size must be at least "
            f"{algorithm.min_group}, not {config.generate.group_size}."
        )
    if learn.sharding != "none" and config.backend == "local":
        yield (
            "learn.sharding=fsdp divides the learner among processes, and backend=local has one. Set "
            "backend=monarch and monarch.learners=N, or learn.sharding=none."
        )
    if offpolicy and algorithm.dynamic_sampling and learn.max_resamples:
        yield (
            f"max_offpolicy_steps={offpolicy} generates ahead of learning, and {name} would resample groups with "
            "newer weights. Set learn.max_resamples=0 or max_offpolicy_steps=0."
        )
    if offpolicy and learn.importance_cap == 0:
        yield (
            f"max_offpolicy_steps={offpolicy} trains on completions of older weights, and learn.importance_cap=0 turns "
            "off the correction for it. Leave learn.importance_cap empty, or set max_offpolicy_steps=0."
        )
    if config.steps and (greedy := find_greedy_setting(config)):
        yield (
            f"With generate.{greedy} all completions of a group are equal, so nothing can be learned. Leave it at its "
            "default."
        )


def make_problem_stream(config: Config, task: Task[Any]) -> ProblemStream:
    """Return the stream of training problems that `config.data` describes."""
    data = config.data
    if isinstance(task, DatasetTask) and not data.file:
        if config.task.schedule:
            raise ConfigError("task.schedule needs a task that generates its problems.")
        problems = [p for p in task.problems if assign_split(p) is Split.TRAIN]
        return FixedProblems(problems, config.seed)
    if data.source == "fresh":
        if data.file:
            raise ConfigError("data.file is set, but data.source is fresh. Set data.source=fixed.")
        stages = make_curriculum(config)
        first = stages.pop(0, task)
        return FreshProblems(first, Split.TRAIN, config.seed, data.on_exhausted, stages)
    if config.task.schedule:
        raise ConfigError("task.schedule draws new problems, so it needs data.source=fresh.")
    if data.file:
        return FixedProblems(read_task_problems(data.file, task), config.seed)
    fresh = FreshProblems(task, Split.TRAIN, config.seed, on_exhausted="stop")
    try:
        return FixedProblems(fresh.take(data.size), config.seed)
    except ProblemsExhausted:
        raise ConfigError(
            f"data.size is {data.size:,}, but {task.name} has only {fresh.drawn:,} training problems "
            "with these options. Lower data.size, or enlarge the problem space (task.options)."
        ) from None


def make_curriculum(config: Config) -> dict[int, Task[Any]]:
    """Return the task of each stage of `task.schedule`, by the step at which the stage starts."""
    stages = {}
    for step, options in sorted(config.task.schedule.items()):
        if step < 0:
            raise ConfigError(f"task.schedule has a step {step}; steps start at 0.")
        try:
            stages[step] = make_task(config.task.name, {**config.task.options, **options})
        except TaskError as error:
            raise ConfigError(f"task.schedule, step {step}: {error}") from None
    return stages


def describe_data(
    config: Config, task: Task[Any], problems: ProblemStream, validation_problems: int
) -> dict[str, Any]:
    """Return the manifest: one entry per split. The run adds the number of problems drawn."""
    data = config.data
    train: dict[str, Any] = {"source": data.source, "seed": config.seed}
    if isinstance(problems, FixedProblems):
        train["problems"] = len(problems.problems)
    if data.source == "fixed" and data.file:
        train |= _describe_file(data.file, config)
    else:
        train |= _describe_generator(task, Split.TRAIN)
        if config.task.schedule:
            train["schedule"] = config.model_dump(mode="json")["task"]["schedule"]
    validation: dict[str, Any] = {"problems": validation_problems}
    if validation_problems:
        validation["file"] = "data/validation.jsonl"
    if config.evaluate.file:
        validation["source"] = _describe_file(config.evaluate.file, config)
    else:
        generator = _describe_generator(task, Split.VALIDATION)
        validation["source"] = generator | {"seed": config.evaluate.seed}
    manifest: dict[str, Any] = {"train": train, "validation": validation}
    if isinstance(task, DatasetTask):
        files = [{"file": str(file), **compute_checksum(file)} for file in task.sources]
        manifest["dataset"] = {"columns": task.columns, "kind": task.kind.value, "files": files}
    if not isinstance(task, DatasetTask) or task.count(Split.TEST):
        test = _describe_generator(task, Split.TEST)  # the run never uses it
        manifest["test"] = test | {"create": shlex.join(_test_command(config))}
    return manifest


def _describe_generator(task: Task[Any], split: Split) -> dict[str, Any]:
    options = task.options.model_dump(mode="json")
    return {"task": task.name, "options": options, "split": split.value}


def _describe_file(name: str, config: Config) -> dict[str, Any]:
    path = Path(name.format(task=config.task.name))
    return {"file": str(path), "sha256": compute_checksum(path)["sha256"]}


def _test_command(config: Config) -> list[str]:
    """The command that writes test problems to a file."""
    options = [f"{name}={json.dumps(value)}" for name, value in config.task.options.items()]
    imports = [part for name in config.imports for part in ("--imports", name)]
    command = ["glasshouse", "tasks", "generate", "--task", config.task.name, "--split", "test"]
    command += ["--count", str(TEST_PROBLEMS), "--out", "test.jsonl", *imports]
    return [*command, *(["--options", *options] if options else [])]
