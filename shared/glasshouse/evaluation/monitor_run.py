"""`glasshouse monitor`: a run's base and checkpoints through evaluations, on held-out problems.

    base ──┐
    step 20├─► rollouts of the same problems ──► evaluations ──► results/monitor.json, rows
    step 60┘

It can be killed at any time: what is done of a subject lasts, and the same command goes on. The
same weights under the same settings are not measured twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glasshouse import models as policies
from glasshouse import tasks
from glasshouse.backends.base import Inline
from glasshouse.config import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.evaluation import accuracy
from glasshouse.evaluation.contamination import Guard
from glasshouse.generate import Sampling
from glasshouse.models import Policy
from glasshouse.monitorability.base import Evaluation, Row, Subject, reserve
from glasshouse.monitorability.before_after import changes, planted_verdict, verdict
from glasshouse.monitorability.interventions import Interventions
from glasshouse.monitorability.monitor_scores import Verdicts, fitting
from glasshouse.monitorability.organisms import EVALUATIONS, Plan, Planted
from glasshouse.monitors import Monitor
from glasshouse.rewards.penalties import Pressures
from glasshouse.rollout.collector import Collector, grade_by
from glasshouse.store import checkpoints
from glasshouse.store.monitor_results import FindingsFile
from glasshouse.store.run_directory import config_of, locked
from glasshouse.tasks import Organism, Task
from glasshouse.train import build, checkpointing
from glasshouse.types import Problem, Rollout

BASE = "base"


class Watcher:
    """Told how monitoring comes along; says nothing."""

    def subjects(self, names: Sequence[str], steps: int) -> None: ...
    def doing(self, name: str, what: str) -> None: ...
    def done(self, name: str, entry: dict[str, Any], known: bool) -> None: ...
    def warn(self, sentence: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """A subject before it is loaded."""

    name: str
    step: int
    model: str
    digest: str
    """sha256 of model.safetensors; for a base that is no folder, a digest of its tensors."""


def monitor(
    run: Path,
    *,
    problems: int | None = None,
    greedy: bool = False,
    monitors: Sequence[Monitor] = (),
    evaluations: Sequence[Evaluation] | None = None,
    ends: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Measure the base and every valid checkpoint (`ends`: only the base and the last), with these
    monitors beside the fitting ones, or by other evaluations altogether; returns what
    `results/monitor.json` holds."""
    watcher = watcher or Watcher()
    config = config_of(run)
    wanted = config.monitor.problems if problems is None else problems
    if wanted < 2:
        raise ConfigError("Monitoring needs at least two problems; raise monitor.problems.")
    build.settle(config.threads)
    with locked(run):
        base = policies.load(config.model)
        config = build.with_ranges(plain(config, wanted), base)
        task = tasks.make(config.task.name, config.task.options)
        chosen = list(evaluations or fitting_evaluations(config, task, monitors))
        spare = max(map(reserve, chosen))
        guard = Guard(accuracy.oversized(plain(config, wanted + spare), task), wanted)
        held_out, audit = guard.check(run / "results" / "rollouts")
        kept_back = guard.audit.clean(wanted + spare)[wanted:]
        file = FindingsFile(
            run / "results", settings(config, held_out, kept_back, greedy, chosen, audit["removed"])
        )
        subjects = list(_subjects(run, config, base, watcher))
        if ends:
            subjects = subjects[:1] + subjects[1:][-1:]
        watcher.subjects([s.name for s in subjects], len(chosen) + 1)
        for weights in subjects:
            known = file.entry(weights.name, weights.digest)
            if known is None:
                policy = base if weights.name == BASE else policies.load(weights.model)
                found, rows = measure(
                    policy,
                    weights,
                    config,
                    task,
                    held_out,
                    greedy,
                    chosen,
                    watcher,
                    kept_back=kept_back,
                    base=file.rows(BASE) if spare and weights.name != BASE else None,
                )
                file.add(found, rows)
            watcher.done(weights.name, file.entry(weights.name, weights.digest) or {}, bool(known))
        return _conclude(file)


def fitting_evaluations(
    config: Config, task: Task[Any], monitors: Sequence[Monitor] = ()
) -> list[Evaluation]:
    """What a run of this task can be measured by, these monitors included. An organism's are held to
    its labels, any other task's to the only truth there is without one: the answer is wrong. A monitor
    that the run was trained against is refused."""
    planted = isinstance(task, Organism)
    fit = build.evaluating(config, task) if planted else fitting(task.name)
    believed = [*fit, *monitors]
    Pressures.of(config.reward.penalties, task, believed)
    plan = Plan(threshold=config.monitor.threshold_problems)
    judged = Planted(believed, config.monitor.samples, plan) if planted else Verdicts(believed)
    own = [EVALUATIONS[task.name]()] if task.name in EVALUATIONS else []
    return [Interventions(), judged, *own]


def plain(config: Config, problems: int) -> Config:
    """The run's configuration as far as asking and grading go."""
    return config.model_copy(
        update={
            "evaluate": config.evaluate.model_copy(update={"problems": problems}),
            "learn": config.learn.model_copy(update={"lora_rank": 0, "kl": 0.0}),
            "backend": "local",
            "lag": 0,
        }
    )


def settings(
    config: Config,
    held_out: Sequence[Problem],
    kept_back: Sequence[Problem],
    greedy: bool,
    evaluations: Sequence[Evaluation],
    removed: int,
) -> dict[str, Any]:
    """Everything that decides what is found, but for the weights."""
    back = {"reserve": len(kept_back), "reserve_sha256": _digest(kept_back)} if kept_back else {}
    return back | {
        "problems": len(held_out),
        "problems_sha256": _digest(held_out),
        "removed_as_trained_on": removed,
        "rollouts": "greedy" if greedy else f"sampled at {config.generate.temperature:g}",
        "max_tokens": config.generate.max_tokens,
        "seed": config.seed,
        "task": {"name": config.task.name, "style": config.task.style.value},
        "reward": config.reward.model_dump(mode="json"),
        "evaluations": {e.name: e.describe() for e in evaluations},
        "versions": checkpointing.versions(),
    }


def _digest(problems: Sequence[Problem]) -> str:
    return hashlib.sha256(json.dumps([[p.task, p.key] for p in problems]).encode()).hexdigest()


def measure(
    policy: Policy,
    weights: Weights,
    config: Config,
    task: Task[Any],
    held_out: Sequence[Problem],
    greedy: bool,
    evaluations: Sequence[Evaluation],
    watcher: Watcher,
    *,
    kept_back: Sequence[Problem] = (),
    base: Sequence[Row] | None = None,
) -> tuple[dict[str, Any], list[Row]]:
    """One subject's entry and its rows. `base`: the base's rows, if this is another subject."""
    placement = Inline(policy, config)
    drawn = build.sampling(config)
    if greedy:
        drawn = Sampling(max_tokens=drawn.max_tokens, temperature=0, stop=drawn.stop)

    def collect(
        task: Task[Any], problems: Sequence[Problem], *, samples: int, split: str
    ) -> list[Rollout]:
        collector = Collector(policy, task, placement, config)
        groups = collector.collect(
            problems, step=weights.step, split=split, samples=samples, sampling=drawn
        )
        return [rollout for group in groups for rollout in group]

    watcher.doing(weights.name, "rollouts")
    subject = Subject(
        name=weights.name,
        step=weights.step,
        policy=policy,
        generator=placement.generator,
        task=task,
        rollouts=collect(task, held_out, samples=1, split="monitor"),
        collect=collect,
        grade=grade_by(config.reward),
        max_tokens=config.generate.max_tokens,
        seed=config.seed,
    )
    measures: dict[str, Any] = {}
    rows: list[Row] = []
    for evaluation in evaluations:
        watcher.doing(weights.name, evaluation.name)
        known = None if base is None else [r for r in base if r["evaluation"] == evaluation.name]
        mine = replace(subject, reserve=kept_back[: reserve(evaluation)], base=known)
        found = evaluation.evaluate(mine)
        measures[evaluation.name] = {name: m.as_dict() for name, m in found.measures.items()}
        named = {"subject": weights.name, "step": weights.step, "evaluation": evaluation.name}
        rows += [named | row for row in found.rows]
    entry = {
        "name": weights.name,
        "step": weights.step,
        "weights": weights.digest,
        "measures": measures,
    }
    return entry, rows


def _subjects(run: Path, config: Config, base: Policy, watcher: Watcher) -> Iterator[Weights]:
    """The base, then every checkpoint that is valid, oldest first."""
    yield Weights(BASE, 0, config.model, checkpointing.fingerprint(base))
    found = checkpoints.listed(run / "checkpoints")
    whole = [c for c in found if not c.faults]
    for damaged in (c for c in found if c.faults):
        watcher.warn(f"{damaged.path.name} is damaged ({damaged.faults[0]}); it is left out.")
    if not whole:
        raise RunError(f"{run} has no valid checkpoint: there is nothing to monitor yet.")
    for checkpoint in whole:
        sums = json.loads((checkpoint.path / checkpoints.SUMS).read_text())
        digest = sums[checkpoints.MODEL]["sha256"]
        yield Weights(checkpoint.path.name, checkpoint.step, str(checkpoint.path), digest)


def _conclude(file: FindingsFile) -> dict[str, Any]:
    """The change from the first subject to the last, problem by problem, and a sentence on it."""
    first, last = file.entries[0], file.entries[-1]
    made = changes(file.rows(first["name"]), file.rows(last["name"]))
    file.more = {
        "change": {"from": first["name"], "to": last["name"]}
        | {"measures": {name: scored.as_dict() for name, scored in made.items()}},
    }
    compared = (first, last, file.more["change"]["measures"])
    file.more["verdict"] = " ".join(filter(None, (planted_verdict(*compared), verdict(*compared))))
    file.write()
    return {"settings": file.settings, "subjects": file.entries, **file.more}
