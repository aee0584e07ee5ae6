"""`glasshouse monitor`: evaluate a run's base model and checkpoints on the same held-out problems.

    base ───┐
    step 20 ├─► rollouts of the same problems ──► evaluations ──► results/monitor.json and its rows
    step 60 ┘

It can be interrupted at any time: finished checkpoints are kept, and the same command continues. The
same weights with the same settings are not evaluated twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.measurement.before_after import (
    CheckpointEntry,
    compute_changes,
    summarize_change,
    summarize_planted_change,
)
from glasshouse.measurement.columns import own_monitors
from glasshouse.measurement.evaluation_setup import (
    draw_validation,
    fill_task_options,
    make_evaluation_monitors,
)
from glasshouse.measurement.evaluations import EvaluatedCheckpoint, Evaluation, reserve_size
from glasshouse.measurement.fitting import FittingPlan
from glasshouse.measurement.interventions.evaluation import InterventionEvaluation
from glasshouse.measurement.measure import Row
from glasshouse.measurement.monitor_evaluation import MonitorEvaluation, OrganismEvaluation
from glasshouse.measurement.organisms.substitution import SubstitutionEvaluation
from glasshouse.measurement.validation_filter import ValidationFilter, describe_unreadable
from glasshouse.monitors.base import Monitor
from glasshouse.registry import import_modules
from glasshouse.rollout.collector import RolloutCollector, make_grader
from glasshouse.rollout.penalties import Penalties
from glasshouse.runs.checkpoints import Checkpoint, list_checkpoints
from glasshouse.runs.monitor_results import MonitorResultsFile
from glasshouse.runs.run_config import load_verified_config
from glasshouse.runs.run_directory import acquire_lock
from glasshouse.tasks.base import Task, make_task
from glasshouse.tasks.organisms.base import Organism
from glasshouse.tasks.organisms.substitution import Substitution
from glasshouse.types import Problem, Rollout, SamplingParams

if TYPE_CHECKING:  # torch is imported where a model is run
    from glasshouse.models.policy import Policy

BASE = "base"


class MonitorProgress:
    """Receives the progress of `monitor_run` and ignores it."""

    def start(self, names: Sequence[str], steps_each: int) -> None: ...
    def working_on(self, name: str, evaluation: str) -> None: ...
    def finished(self, name: str, entry: dict[str, Any], was_known: bool) -> None: ...
    def warn(self, message: str) -> None: ...


def monitor_run(
    run: Path,
    *,
    problems: int | None = None,
    greedy: bool = False,
    monitors: Sequence[Monitor] = (),
    evaluations: Sequence[Evaluation] | None = None,
    first_and_last: bool = False,
    progress: MonitorProgress | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Evaluate the base and every valid checkpoint (`first_and_last`: the base and the last checkpoint),
    with these monitors besides the default ones, or with other evaluations altogether. Return the
    content of `results/monitor.json`. With `out`, the results are written to that folder, and the run
    may be read-only."""
    from glasshouse.models.devices import configure_torch

    progress = progress or MonitorProgress()
    config, damage = load_verified_config(run)
    for item in damage:
        progress.warn(str(item))
    import_modules(config.imports)
    count = config.monitor.problems if problems is None else problems
    if count < 2:
        raise ConfigError("monitor.problems must be at least 2.")
    configure_torch(config.threads)
    if out:
        out.mkdir(parents=True, exist_ok=True)
    with acquire_lock(out or run):
        base = _load_policy(config)
        config = fill_task_options(_with_problems(config, count), base)
        task = make_task(config.task.name, config.task.options)
        chosen = list(evaluations or default_evaluations(config, task, monitors))
        reserved = max(map(reserve_size, chosen))
        candidates = draw_validation(_with_problems(config, count + reserved), task)
        validation_filter = ValidationFilter(candidates, count)
        validation, audit = validation_filter.select_clean(run)
        if "unreadable" in audit:
            progress.warn(describe_unreadable(audit["unreadable"]))
        reserve = validation_filter.check.clean_problems(count + reserved)[count:]
        file = MonitorResultsFile(
            out or run / "results",
            describe_measurement(config, validation, reserve, greedy, chosen, audit["removed"]),
        )
        models = list(_list_models(run, config, base, progress))
        if first_and_last:
            models = models[:1] + models[1:][-1:]
        progress.start([m.name for m in models], len(chosen) + 1)
        for model in models:
            known = file.find_entry(model.name, model.weights_sha256)
            if known is None:
                entry, rows = evaluate_weights(
                    base
                    if model.name == BASE
                    else _load_policy(config.model_copy(update={"model": str(model.path)})),
                    model,
                    config,
                    task,
                    validation,
                    greedy,
                    chosen,
                    progress,
                    reserve=reserve,
                    base_rows=file.rows(BASE) if reserved and model.name != BASE else None,
                )
                file.add(entry, rows)
            entry = file.find_entry(model.name, model.weights_sha256) or {}
            progress.finished(model.name, entry, was_known=known is not None)
        return _write_changes(file)


def default_evaluations(
    config: Config, task: Task[Any], monitors: Sequence[Monitor] = ()
) -> list[Evaluation]:
    """Return the evaluations that fit the task. Monitors of an organism are compared with its labels;
    for any other task the only ground truth is whether the answer is wrong. A monitor that the run
    was trained against is refused."""
    is_organism = isinstance(task, Organism)
    own = make_evaluation_monitors(config, task) if is_organism else own_monitors(task)
    all_monitors = [*own, *monitors]
    Penalties.from_config(config.reward.penalties, task, all_monitors)  # raises if they overlap
    plan = FittingPlan(threshold_problems=config.monitor.threshold_problems)
    by_monitor: Evaluation = (
        OrganismEvaluation(all_monitors, config.monitor.samples, plan)
        if is_organism
        else MonitorEvaluation(all_monitors)
    )
    specific = [SubstitutionEvaluation()] if isinstance(task, Substitution) else []
    return [InterventionEvaluation(), by_monitor, *specific]


def _with_problems(config: Config, problems: int) -> Config:
    evaluate = config.evaluate.model_copy(update={"problems": problems})
    return config.model_copy(update={"evaluate": evaluate})


def _load_policy(config: Config) -> Policy:
    from glasshouse.models.policy import load_configured_policy

    return load_configured_policy(config, training=False, role="generator")


def describe_measurement(
    config: Config,
    validation: Sequence[Problem],
    reserve: Sequence[Problem],
    greedy: bool,
    evaluations: Sequence[Evaluation],
    removed: int,
) -> dict[str, Any]:
    """Return everything besides the weights that the results depend on."""
    from glasshouse.models.provenance import software_versions

    reserved = (
        {"reserve": len(reserve), "reserve_sha256": _hash_problems(reserve)} if reserve else {}
    )
    return reserved | {
        "problems": len(validation),
        "problems_sha256": _hash_problems(validation),
        "removed_as_trained_on": removed,
        "rollouts": "greedy" if greedy else f"sampled at {config.generate.temperature:g}",
        "max_tokens": config.generate.max_tokens,
        "seed": config.seed,
        "task": {"name": config.task.name, "style": config.task.style.value},
        "reward": config.reward.model_dump(mode="json"),
        "evaluations": {e.name: e.describe() for e in evaluations},
        "versions": software_versions(),
    }


def _hash_problems(problems: Sequence[Problem]) -> str:
    return hashlib.sha256(json.dumps([[p.task, p.key] for p in problems]).encode()).hexdigest()


def evaluate_weights(
    policy: Policy,
    model: Checkpoint,
    config: Config,
    task: Task[Any],
    validation: Sequence[Problem],
    greedy: bool,
    evaluations: Sequence[Evaluation],
    progress: MonitorProgress,
    *,
    reserve: Sequence[Problem] = (),
    base_rows: Sequence[Row] | None = None,
) -> tuple[dict[str, Any], list[Row]]:
    """Return one model's entry and rows. `base_rows`: the rows of the base, if this is a checkpoint."""
    from glasshouse.generate.local import LocalGeneration

    backend = LocalGeneration(policy, config.generate)
    sampling = config.generate.sampling()
    if greedy:
        sampling = SamplingParams(max_tokens=sampling.max_tokens, temperature=0, stop=sampling.stop)

    def collect(
        task: Task[Any], problems: Sequence[Problem], *, samples: int, split: str
    ) -> list[Rollout]:
        collector = RolloutCollector(policy, task, backend, config)
        groups = collector.collect(
            problems, step=model.step, split=split, samples=samples, sampling=sampling
        )
        return [rollout for group in groups for rollout in group]

    progress.working_on(model.name, "rollouts")
    checkpoint = EvaluatedCheckpoint(
        name=model.name,
        step=model.step,
        policy=policy,
        generator=backend.generator,
        task=task,
        rollouts=collect(task, validation, samples=1, split="monitor"),
        collect=collect,
        grade=make_grader(config.reward),
        max_tokens=config.generate.max_tokens,
        seed=config.seed,
    )
    measures: dict[str, Any] = {}
    rows: list[Row] = []
    for evaluation in evaluations:
        progress.working_on(model.name, evaluation.name)
        own_base_rows = (
            None
            if base_rows is None
            else [row for row in base_rows if row["evaluation"] == evaluation.name]
        )
        result = evaluation.evaluate(
            replace(
                checkpoint, reserve=reserve[: reserve_size(evaluation)], base_rows=own_base_rows
            )
        )
        measures[evaluation.name] = {
            name: measure.as_dict() for name, measure in result.measures.items()
        }
        named = {"checkpoint": model.name, "step": model.step, "evaluation": evaluation.name}
        rows += [named | row for row in result.rows]
    entry = {
        "name": model.name,
        "step": model.step,
        "weights": model.weights_sha256,
        "measures": measures,
    }
    return entry, rows


def _list_models(
    run: Path, config: Config, base: Policy, progress: MonitorProgress
) -> Iterator[Checkpoint]:
    """Yield the base, then every valid checkpoint, oldest first."""
    from glasshouse.models.provenance import fingerprint_weights

    yield Checkpoint(
        name=BASE, step=0, path=Path(config.model), weights_sha256=fingerprint_weights(base)
    )
    all_checkpoints = list_checkpoints(run / "checkpoints")
    for checkpoint in all_checkpoints:
        if checkpoint.damage:
            progress.warn(
                f"{checkpoint.path.name} is damaged ({checkpoint.damage[0]}) and is skipped."
            )
    valid = [c for c in all_checkpoints if not c.damage]
    if not valid:
        raise RunError(f"{run} has no valid checkpoint, so there is nothing to monitor yet.")
    yield from valid


def _write_changes(file: MonitorResultsFile) -> dict[str, Any]:
    """Add the change from the first model to the last, paired by problem, and a summary sentence."""
    first, last = file.entries[0], file.entries[-1]
    changes = compute_changes(file.rows(first["name"]), file.rows(last["name"]))
    file.summary = {
        "change": {"from": first["name"], "to": last["name"]}
        | {"measures": {name: change.as_dict() for name, change in changes.items()}},
    }
    before, after = cast("CheckpointEntry", first), cast("CheckpointEntry", last)
    sentences = (
        summarize_planted_change(before, after, changes),
        summarize_change(before, after, changes),
    )
    file.summary["verdict"] = " ".join(filter(None, sentences))
    file.write()
    return {"settings": file.settings, "checkpoints": file.entries, **file.summary}
