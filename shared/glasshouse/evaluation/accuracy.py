"""Evaluation: held-out problems, greedy and sampled, both readings, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from glasshouse.config import Config
from glasshouse.data import Fresh, Split, UsedUp, files
from glasshouse.errors import ConfigError
from glasshouse.generate import Sampling
from glasshouse.monitorability import organisms
from glasshouse.rollout.collector import Collector, Group
from glasshouse.statistics import pass_at_k, wilson
from glasshouse.tasks import Organism, Task
from glasshouse.train import build
from glasshouse.types import Problem, Rollout, StopReason


def problems(config: Config, task: Task[Any]) -> list[Problem]:
    """The held-out problems: a function of `evaluate.seed` alone, so that runs can be compared."""
    return oversized(config, task)[: config.evaluate.problems]


def oversized(config: Config, task: Task[Any]) -> list[Problem]:
    """The same and a few more after them, in case the run is trained on some of them after all."""
    wanted = math.ceil(config.evaluate.problems * config.evaluate.oversize)
    if not wanted:
        return []
    if config.evaluate.file:
        return files.read(config.evaluate.file.format(task=task.name))[:wanted]
    stream = Fresh(task, Split.VALIDATION, config.evaluate.seed, when_used_up="stop")
    drawn: dict[str, Problem] = {}
    with suppress(UsedUp):  # a small space may hold fewer
        while len(drawn) < wanted:
            problem = stream.take(1)[0]
            drawn.setdefault(problem.key, problem)
    return list(drawn.values())


def evaluate(
    collector: Collector,
    held_out: Sequence[Problem],
    step: int,
    between: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], list[Rollout]]:
    """Results and the rollouts behind them."""
    if not held_out:
        raise ConfigError("There is nothing to evaluate on: evaluate.problems is 0.")
    config = collector.config
    limit = config.generate.max_tokens
    greedy = collector.collect(
        held_out, step=step, split="validation/greedy", samples=1,
        sampling=Sampling(max_tokens=limit, temperature=0, stop=config.generate.stop), between=between,
    )  # fmt: skip
    sampled: list[Group] = []
    if config.evaluate.samples:
        sampled = collector.collect(
            held_out, step=step, split="validation/sampled", samples=config.evaluate.samples,
            sampling=Sampling(max_tokens=limit, temperature=1, stop=config.generate.stop), between=between,
        )  # fmt: skip
    found, rollouts = results(greedy, sampled), [r for group in greedy + sampled for r in group]
    task = collector.task
    if isinstance(task, Organism) and config.evaluate.samples:

        def collect(problems: Sequence[Problem], split: str) -> list[Group]:
            return collector.collect(
                problems, step=step, split=split, samples=config.evaluate.samples,
                sampling=Sampling(max_tokens=limit, temperature=1, stop=config.generate.stop),
                between=between,
            )  # fmt: skip

        monitors = build.evaluating(config, task)
        labelled, arms = organisms.evaluate(task, held_out, collect, monitors)
        found["organism"] = organisms.summary(labelled)
        rollouts += arms
    return found, rollouts


def results(greedy: Sequence[Group], sampled: Sequence[Group]) -> dict[str, Any]:
    """Accuracies with their 95 % intervals; `accuracy` is greedy, under the configured reading."""
    firsts = [group[0] for group in greedy]
    found: dict[str, Any] = {
        "problems": len(firsts),
        **rate("accuracy", [r.grade.correct for r in firsts]),
        **rate("lenient", [r.grade.lenient for r in firsts]),
        **rate("strict", [r.grade.strict for r in firsts]),
        **rate("format", [r.grade.tagged for r in firsts]),
        "truncated": _share(r.completion.stop is StopReason.LENGTH for r in firsts),
        "length": statistics.fmean(len(r.completion.tokens) for r in firsts),
    }
    if sampled:
        n = len(sampled[0])
        right = [sum(r.grade.correct for r in group) for group in sampled]
        found["pass_at_1"] = statistics.fmean(r / n for r in right)
        found[f"pass_at_{n}"] = statistics.fmean(pass_at_k(r, n, n) for r in right)
        found["sampled_length"] = statistics.fmean(
            len(r.completion.tokens) for g in sampled for r in g
        )
        found["sampled_format"] = _share(r.grade.tagged for g in sampled for r in g)
    levels = sorted({r.problem.level for r in firsts})
    found["levels"] = {
        level: rate("accuracy", [r.grade.correct for r in firsts if r.problem.level == level])
        | {"problems": sum(r.problem.level == level for r in firsts)}
        for level in levels
    }
    return found


def rate(name: str, outcomes: Sequence[bool]) -> dict[str, float]:
    """A rate with its Wilson interval, under three names."""
    low, high = wilson(sum(outcomes), len(outcomes))
    return {name: sum(outcomes) / len(outcomes), f"{name}_low": low, f"{name}_high": high}


def _share(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
