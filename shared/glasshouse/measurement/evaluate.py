"""Evaluate a model on held-out problems, greedily and by sampling, with confidence intervals.

No optimizer and no reference model is constructed: an evaluation needs the memory of the model and
its generator, nothing more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.measurement.closed_forms import clustered_rate_interval, pass_at_k, wilson_interval
from glasshouse.measurement.columns import (
    Columns,
    Scores,
    label_rollouts,
    problems_by_arm,
    score_rollouts,
)
from glasshouse.measurement.evaluation_setup import (
    check_context_length,
    draw_validation,
    fill_task_options,
    make_evaluation_monitors,
)
from glasshouse.measurement.measure import measure
from glasshouse.measurement.partial_credit import summarize_partial_credit
from glasshouse.monitors.base import Monitor
from glasshouse.registry import import_modules
from glasshouse.rollout.collector import Group, RolloutCollector
from glasshouse.rollout.terms import validate_reward_terms
from glasshouse.tasks.base import make_task
from glasshouse.tasks.organisms.base import Organism
from glasshouse.types import FinishReason, Problem, Rollout, SamplingParams


def evaluate_model(config: Config) -> dict[str, Any]:
    """Evaluate `config.model` on `evaluate.problems` held-out problems of `config.task`; write nothing.
    The results begin with the task, its style and the options that were used.

    Example: `evaluate_model(load_config([], ["model=pocket", "evaluate.problems=200"]))["pass_at_1"]`
    """
    from glasshouse.generate.local import LocalGeneration
    from glasshouse.models.devices import configure_torch
    from glasshouse.models.policy import load_configured_policy

    import_modules(config.imports)
    configure_torch(config.threads)
    policy = load_configured_policy(config, training=False, role="generator")
    config = fill_task_options(config, policy)
    task = make_task(config.task.name, config.task.options)
    validate_reward_terms(config.reward.terms, config.reward.combine)
    check_context_length(config, policy, task)
    backend = LocalGeneration(policy, config.generate)
    collector = RolloutCollector(policy, task, backend, config)
    validation = draw_validation(config, task)[: config.evaluate.problems]
    results = evaluate_policy(collector, validation, step=0)[0]
    return {"task": config.task.model_dump(mode="json", exclude={"schedule"}), **results}


def evaluate_policy(
    collector: RolloutCollector,
    validation: Sequence[Problem],
    step: int,
    check_interrupt: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], list[Rollout]]:
    """Return the results and the rollouts behind them. An organism is also evaluated in its planted
    and control arms."""
    if not validation:
        raise ConfigError("There is nothing to evaluate on: evaluate.problems is 0.")
    config, task = collector.config, collector.task

    def collect(
        problems: Sequence[Problem], split: str, samples: int, temperature: float
    ) -> list[Group]:
        sampling = SamplingParams(
            max_tokens=config.generate.max_tokens,
            temperature=temperature,
            stop=config.generate.stop,
        )
        return collector.collect(
            problems, step=step, split=split, samples=samples,
            sampling=sampling, check_interrupt=check_interrupt,
        )  # fmt: skip

    samples = config.evaluate.samples
    greedy = collect(validation, "validation/greedy", 1, 0)
    sampled = collect(validation, "validation/sampled", samples, 1) if samples else []
    results = summarize_groups(greedy, sampled)
    rollouts = [r for group in greedy + sampled for r in group]
    if isinstance(task, Organism) and samples:
        arms = [
            rollout
            for arm, problems in problems_by_arm(task, validation).items()
            for group in collect(problems, f"validation/{arm}", samples, 1)
            for rollout in group
        ]
        columns = label_rollouts(arms, task)
        results["organism"] = summarize_organism(
            columns, arms, make_evaluation_monitors(config, task)
        )
        labels = zip(arms, columns.behaviour, strict=True)
        rollouts += [replace(rollout, behaviour=bool(shows)) for rollout, shows in labels]
    return results, rollouts


def summarize_organism(
    columns: Columns, rollouts: Sequence[Rollout], monitors: Sequence[Monitor]
) -> dict[str, Any]:
    """Return the values for the log, without intervals: those of a monitor under its name; None for an
    undefined one."""
    scores = [Scores.from_outputs(m.name, score_rollouts(m, rollouts)) for m in monitors]
    summary: dict[str, Any] = {"rollouts": len(rollouts)}
    for measured in measure(columns, "training", scores, resamples=0).values():
        own = summary.setdefault(measured.monitor, {}) if measured.monitor else summary
        own[measured.id] = measured.value
    return summary


def summarize_groups(greedy: Sequence[Group], sampled: Sequence[Group]) -> dict[str, Any]:
    """Return accuracies with 95 % intervals. `pass_at_1` is that of samples, `accuracy` that of greedy
    answers, both with the configured answer parser."""
    firsts = [group[0] for group in greedy]
    results: dict[str, Any] = {"problems": len(firsts), **sampled_rate(sampled)}
    results |= {
        **rate_with_interval("accuracy", [r.grade.correct for r in firsts]),
        **rate_with_interval("lenient", [r.grade.lenient for r in firsts]),
        **rate_with_interval("strict", [r.grade.strict for r in firsts]),
        **rate_with_interval("format", [r.grade.has_answer_tag for r in firsts]),
        "truncated": _fraction(r.completion.finish_reason is FinishReason.LENGTH for r in firsts),
        "length": statistics.fmean(r.completion.length for r in firsts),
        **summarize_partial_credit(firsts),
    }
    if sampled:
        n = len(sampled[0])
        correct = [sum(r.grade.correct for r in group) for group in sampled]
        if n > 1:
            results[f"pass_at_{n}"] = statistics.fmean(pass_at_k(c, n, n) for c in correct)
        results["sampled_length"] = statistics.fmean(
            r.completion.length for group in sampled for r in group
        )
        results["sampled_format"] = _fraction(
            r.grade.has_answer_tag for group in sampled for r in group
        )
        results |= summarize_partial_credit([r for group in sampled for r in group], "sampled_")
    results["levels"] = {
        level: {"problems": sum(r.problem.level == level for r in firsts)}
        | sampled_rate([group for group in sampled if group[0].problem.level == level])
        | rate_with_interval(
            "accuracy", [r.grade.correct for r in firsts if r.problem.level == level]
        )
        for level in sorted({r.problem.level for r in firsts})
    }
    return results


def sampled_rate(sampled: Sequence[Group]) -> dict[str, float]:
    """Return `pass_at_1`, `pass_at_1_low` and `pass_at_1_high`; nothing without samples."""
    if not sampled:
        return {}
    n = len(sampled[0])
    shares = [sum(r.grade.correct for r in group) / n for group in sampled]
    low, high = clustered_rate_interval(shares, n)
    return {"pass_at_1": statistics.fmean(shares), "pass_at_1_low": low, "pass_at_1_high": high}


def rate_with_interval(name: str, outcomes: Sequence[bool]) -> dict[str, float]:
    """Return a rate and its Wilson interval as `name`, `name_low` and `name_high`."""
    low, high = wilson_interval(sum(outcomes), len(outcomes))
    return {name: sum(outcomes) / len(outcomes), f"{name}_low": low, f"{name}_high": high}


def _fraction(values: Iterable[bool]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
