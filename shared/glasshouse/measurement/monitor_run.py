"""`glasshouse monitor`: measure a run's base model and checkpoints on the same held-out problems.

    base ───┐
    step 20 ├─► rollouts of the same problems ──► measurements ──► results/monitor.json and its rows
    step 60 ┘

It can be interrupted at any time: finished checkpoints are kept, and the same command continues. The
same weights with the same settings are not measured twice.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, RunError
from glasshouse.measurement.columns import own_monitors
from glasshouse.measurement.contamination import ValidationFilter, describe_unreadable
from glasshouse.measurement.evaluate import (
    draw_validation,
    fill_task_options,
    make_evaluation_monitors,
    make_penalties,
)
from glasshouse.measurement.interventions.base import EvaluatedCheckpoint
from glasshouse.measurement.measure import Row, compute_changes, summarize
from glasshouse.measurement.monitor_checkpoint import FIT_PROBLEMS, SCOPES, list_measurements
from glasshouse.measurement.reading import count_unread
from glasshouse.monitors.base import Monitor, mean_cost
from glasshouse.registry import import_modules
from glasshouse.rollout.collector import RolloutCollector
from glasshouse.runs.checkpoints import Checkpoint, list_checkpoints, read_newest_state
from glasshouse.runs.monitor_results import MonitorResultsFile
from glasshouse.runs.run_directory import acquire_lock, load_verified_config
from glasshouse.tasks.base import make_task
from glasshouse.tasks.organisms import Organism
from glasshouse.terminal import (
    Heartbeat,
    format_duration,
    make_console,
    shell_command,
    show_status,
    shows_bars,
    terminal_safe,
)
from glasshouse.types import Problem, Rollout

if TYPE_CHECKING:
    from rich.console import Console

    from glasshouse.models.policy import Policy
    from glasshouse.models.sources import Sources


class MonitorProgress:
    """Shows what is measured and, with `lines`, prints a line for each monitored model. Where a line cannot be redrawn
    it is printed whenever nothing was printed for a while; without a console, nothing is."""

    def __init__(self, console: Console | None = None, lines: bool = True) -> None:
        self.console, self.lines = console or Console(quiet=True), lines
        self.started, self.text, self.stack = time.monotonic(), "starting", ExitStack()

    def __enter__(self) -> MonitorProgress:
        self.show = self.stack.enter_context(show_status(self.console))
        if not shows_bars(self.console):
            self.stack.enter_context(Heartbeat(self._print_text))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def _print_text(self) -> None:
        duration = format_duration(time.monotonic() - self.started)
        self.console.print(
            f"[dim]monitor: {escape(self.text)}, after {duration}[/]", soft_wrap=True
        )

    def start(self, models: int, steps_each: int) -> None:
        self.steps, self.total = 0, models * steps_each

    def working_on(self, name: str, source: str) -> None:
        self.steps, self.text = self.steps + 1, terminal_safe(f"{name}: {source}")
        self.show(f"monitor {self.steps} of {self.total}: {self.text}")

    def finished(self, name: str, was_known: bool) -> None:
        if self.lines:
            status = "measured before" if was_known else "measured"
            self.console.print(f"[dim]{escape(name):<14}{status}[/]")

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]{escape(terminal_safe(message))}[/]", soft_wrap=True)


BASE = "base"


def monitor_run(
    run: str | Path,
    *,
    problems: int | None = None,
    first_and_last: bool = False,
    monitors: Sequence[Monitor] = (),
    out: str | Path | None = None,
    accept_changes: bool = False,
    progress: MonitorProgress | bool = True,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure the base model and every valid checkpoint of a run on held-out problems: monitors, and
    interventions on the same rollouts. Returns what it writes to results/monitor.json, or to the folder
    `out`; finished checkpoints are not measured again. `first_and_last`: the base model and the last
    checkpoint; `monitors`: besides the default ones; `accept_changes`: also if a file that the run was made
    from has changed.

    Example: `monitor_run("runs/try", first_and_last=True)["verdict"]`
    """
    from glasshouse.models.devices import configure_torch

    folder, results = Path(run), Path(out) if out else None
    if isinstance(progress, bool):
        progress = MonitorProgress(console or make_console() if progress else None)
    with progress as shown:
        config, damage = load_verified_config(folder)
        for item in damage:
            shown.warn(str(item))
        import_modules(config.imports)
        config = _with_problems(config, config.monitor.problems if problems is None else problems)
        if config.evaluate.problems < 2:
            raise ConfigError("monitor.problems must be at least 2.")
        configure_torch(config.threads)
        if results:
            results.mkdir(parents=True, exist_ok=True)
        with acquire_lock(results or folder):
            sources = _check_sources(folder, config, accept_changes)
            base = _load_policy(config)
            config = fill_task_options(config, base.card)
            monitored = MonitoredRun(folder, config, monitors, shown)
            monitored.base = base
            file = MonitorResultsFile(results or folder / "results", monitored.settings(sources))
            models = monitored.list_models(base)
            if first_and_last:
                models = models[:1] + models[1:][-1:]
            known = [bool(file.find_entry(m.name, m.weights_sha256)) for m in models]
            shown.start(known.count(False), len(monitored.measurements) + 1)
            for model, was_known in zip(models, known, strict=True):
                if not was_known:
                    is_base = model.name == BASE
                    rows = file.rows(BASE) if monitored.reserve and not is_base else None
                    file.add(*monitored.measure(model, base if is_base else None, rows))
                shown.finished(model.name, was_known)
            return _write_changes(file)


class MonitoredRun:
    """A run, the problems that all its models are measured on, and what is measured of each."""

    def __init__(
        self, run: Path, config: Config, monitors: Sequence[Monitor], shown: MonitorProgress
    ) -> None:
        self.run, self.config, self.shown = run, config, shown
        self.task = task = make_task(config.task.name, config.task.options)
        self.is_organism = isinstance(task, Organism)
        own = make_evaluation_monitors(config, task) if self.is_organism else own_monitors(task)
        self.monitors = [*own, *monitors]
        make_penalties(config, task, self.monitors)  # raises if one of them cannot evaluate it
        self.measurements = list_measurements(task, config.monitor.interventions)
        count, reserved = config.evaluate.problems, self.reserved if self.is_organism else 0
        candidates = draw_validation(_with_problems(config, count + reserved), task)
        filtered = ValidationFilter(candidates, count)
        self.validation, self.audit = filtered.select_clean(run)
        if "unreadable" in self.audit:
            shown.warn(describe_unreadable(self.audit["unreadable"]))
        self.reserve = filtered.clean_problems(count + reserved)[count:]
        """Problems on which monitors are fitted."""
        self.base: Policy | None = None

    @property
    def reserved(self) -> int:
        """Problems of an organism on which monitors are fitted and get their thresholds."""
        return FIT_PROBLEMS + self.config.monitor.threshold_problems

    def settings(self, sources: Sources) -> dict[str, Any]:
        """Everything besides the weights that the results depend on."""
        from glasshouse.models.sources import software_versions

        config = self.config
        plan: dict[str, Any] = {"version": 1, "measurements": list(self.measurements)}
        plan["monitors"] = [monitor.describe() for monitor in self.monitors]
        if self.is_organism:
            fitted = {"scopes": list(SCOPES), "reserve": self.reserved}
            plan |= {"samples": config.monitor.samples, **fitted}
        return {
            "problems": len(self.validation),
            "problems_sha256": _hash_problems(self.validation),
            "reserve": len(self.reserve),
            "reserve_sha256": _hash_problems(self.reserve),
            "removed_as_trained_on": self.audit["removed"],
            "rollouts": f"sampled at {config.generate.temperature:g}",
            "max_tokens": config.generate.max_tokens,
            "seed": config.seed,
            "task": {"name": config.task.name, "style": config.task.style.value},
            "reward": config.reward.model_dump(mode="json"),
            "plan": plan,
            "sources": sources,
            "versions": software_versions(),
        }

    def list_models(self, base: Policy) -> list[Checkpoint]:
        """Return the base, then every valid checkpoint, oldest first."""
        from glasshouse.models.sources import fingerprint_weights

        found = list_checkpoints(self.run / "checkpoints")
        for checkpoint in found:
            if checkpoint.damage:
                name, damage = checkpoint.path.name, checkpoint.damage[0]
                self.shown.warn(f"{name} is damaged ({damage}) and is skipped.")
        valid = [checkpoint for checkpoint in found if not checkpoint.damage]
        if not valid:
            raise RunError(
                f"{self.run} has no valid checkpoint, so there is nothing to monitor yet."
            )
        path, weights = Path(self.config.model), fingerprint_weights(base)
        return [Checkpoint(name=BASE, step=0, path=path, weights_sha256=weights), *valid]

    def measure(
        self, model: Checkpoint, policy: Policy | None, base_rows: Sequence[Row] | None
    ) -> tuple[dict[str, Any], list[Row]]:
        """Return one model's entry and rows. `base_rows`: those of the base, if this is a checkpoint."""
        self.shown.working_on(model.name, "rollouts")
        own = self.config.model_copy(update={"model": str(model.path)})
        checkpoint = self._prepare(policy or _load_policy(own), model.step, base_rows)
        measures: dict[str, Any] = {}
        rows: list[Row] = []
        for source, measure in self.measurements.items():
            self.shown.working_on(model.name, source)
            result = measure(checkpoint)
            measures[source] = {name: m.as_dict() for name, m in result.measures.items()}
            named = {"checkpoint": model.name, "step": model.step, "evaluation": source}
            rows += [named | row for row in result.rows]
        failures = count_failures(rows)
        for name, failed in failures.items():
            self.shown.warn(
                f"{model.name}: the monitor {name} failed on {failed['failed']:,} of {failed['rollouts']:,} rollouts, "
                f"which are left out ({failed['reason']}). The same command asks again."
            )
        entry = {"name": model.name, "step": model.step, "weights": model.weights_sha256}
        reading = asdict(count_unread(checkpoint.graded))
        entry |= {"measures": measures, "reading": reading, "failures": failures}
        scored = group_by_monitor(rows)
        costs = {name: cost for name, own in scored.items() if (cost := mean_cost(own))}
        return entry | ({"costs": costs} if costs else {}), rows

    def _prepare(
        self, policy: Policy, step: int, base_rows: Sequence[Row] | None
    ) -> EvaluatedCheckpoint:
        """Sample one rollout of each held-out problem."""
        from glasshouse.generate.engines import LocalGeneration

        config = self.config
        backend = LocalGeneration(policy, config.generate)
        collector = RolloutCollector(policy, self.task, backend, config)
        sampling = config.generate.sampling()
        graded: list[Rollout] = []

        def collect(problems: Sequence[Problem], *, samples: int, split: str) -> list[Rollout]:
            groups = collector.collect(
                problems, step=step, split=split, samples=samples, sampling=sampling
            )
            rollouts = [rollout for group in groups for rollout in group]
            graded.extend(rollouts)
            return rollouts

        return EvaluatedCheckpoint(
            step=step,
            config=config,
            policy=policy,
            base=self.base,
            generator=backend.generator,
            task=self.task,
            rollouts=collect(self.validation, samples=1, split="monitor"),
            collect=collect,
            graded=graded,
            monitors=self.monitors,
            reserve=self.reserve,
            base_rows=base_rows,
        )


def group_by_monitor(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of monitors' outputs."""
    outputs: dict[str, list[Row]] = {}
    for row in rows:
        if "monitor" in row:
            outputs.setdefault(row["monitor"], []).append(row)
    return outputs


def count_failures(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """How often each monitor that failed did, of how many rollouts, and the first reason."""
    outputs = group_by_monitor(rows)
    failed = {
        name: [row for row in own if row["score"] is None and row["flagged"] is None]
        for name, own in outputs.items()
    }
    return {
        name: {"failed": len(own), "reason": own[0]["reason"], "rollouts": len(outputs[name])}
        for name, own in failed.items()
        if own
    }


def _check_sources(run: Path, config: Config, accept: bool) -> Sources:
    """Return the sources of the base model's and the checkpoints' rollouts; raise if they have changed."""
    from glasshouse.models.sources import EVALUATION_KEYS, find_changes, hash_sources

    sources = hash_sources(config, ("model", *EVALUATION_KEYS))
    changes = find_changes(read_newest_state(run / "checkpoints"), sources)
    if changes and not accept:
        command = shell_command(["glasshouse", "monitor", run, "--accept-changes"])
        raise RunError(
            f"{run} was made from something else: {'; '.join(changes)}. Restore it, or measure the run with "
            f"the change: {command}"
        )
    return sources


def _with_problems(config: Config, problems: int) -> Config:
    evaluate = config.evaluate.model_copy(update={"problems": problems})
    return config.model_copy(update={"evaluate": evaluate})


def _load_policy(config: Config) -> Policy:
    from glasshouse.models.policy import load_configured_policy

    return load_configured_policy(config, training=False, role="generator")


def _hash_problems(problems: Sequence[Problem]) -> str:
    return hashlib.sha256(json.dumps([[p.task, p.key] for p in problems]).encode()).hexdigest()


def _write_changes(file: MonitorResultsFile) -> dict[str, Any]:
    """Add the change from the first model to the last, paired by problem, and a summary sentence."""
    first, last = file.entries[0], file.entries[-1]
    changes = compute_changes(file.rows(first["name"]), file.rows(last["name"]))
    file.summary = {
        "change": {
            "from": first["name"],
            "to": last["name"],
            "measures": {name: change.as_dict() for name, change in changes.items()},
        },
        "verdict": summarize(first, last, changes),
    }
    file.write()
    return {"settings": file.settings, "checkpoints": file.entries, **file.summary}
