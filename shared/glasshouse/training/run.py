"""A training run from its configuration to its summary: what the loop works on and what surrounds it.

The loop (loop.py) calls one method per event (`log_step`, `checkpoint_if_due`, `evaluate_if_due`, …);
what each of them writes and prints is decided here.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.distributed.backend import make_backend
from glasshouse.errors import GlasshouseError, RunError
from glasshouse.files import add_check, compute_checksum, write_json
from glasshouse.learn.losses import get_algorithm
from glasshouse.measurement.contamination import (
    ValidationFilter,
    describe_removed,
    describe_unreadable,
)
from glasshouse.measurement.evaluate import (
    check_context_length,
    draw_reserve,
    draw_validation,
    evaluate_policy,
    fill_task_options,
    make_evaluation_monitors,
    make_penalties,
)
from glasshouse.models import llama
from glasshouse.models.devices import configure_torch, return_freed_memory
from glasshouse.models.policy import load_configured_policy
from glasshouse.models.sources import hash_sources, software_versions
from glasshouse.monitors.llm_judge import JudgeMonitor
from glasshouse.registry import import_modules
from glasshouse.rollout.collector import Group, Pending, RolloutCollector, grade_groups
from glasshouse.rollout.cot_edits import OutcomeOnlyError, describe_reading, get_cot
from glasshouse.runs.curves import write_curves
from glasshouse.runs.run_directory import RunDirectory, is_run_directory, utc_timestamp
from glasshouse.runs.verify import verify_run
from glasshouse.tasks.base import make_task
from glasshouse.tasks.problem_files import write_problem_file
from glasshouse.tasks.streams import ProblemsExhausted
from glasshouse.track.trackers import Trackers, make_metrics, start_trackers, validate_trackers
from glasshouse.training import checkpointing
from glasshouse.training.build import (
    describe_data,
    find_warnings,
    make_curriculum,
    make_problem_stream,
    validate_config,
)
from glasshouse.training.checkpointing import CheckpointManager, Progress
from glasshouse.training.display import Display, startup_banner
from glasshouse.training.interruption import ForcedStop, Interrupted, Interruption
from glasshouse.training.loop import run_training_loop
from glasshouse.training.memory import check_training_memory
from glasshouse.training.metrics import Diagnostics, PhaseTimer, compute_throughput
from glasshouse.training.notes import note_result, start_notes


class TrainingRun:
    """One run, built from its configuration.

    Example: `TrainingRun(config, TerminalDisplay()).train()["after"]["pass_at_1"]`
    """

    directory: RunDirectory
    """Opened by `train`, as the two below."""
    trackers: Trackers
    checkpoints: CheckpointManager

    def __init__(self, config: Config, display: Display | None = None) -> None:
        """Build the parts; raise a `GlasshouseError` that names the key if the configuration is wrong.
        None of them touches the run directory."""
        self.display = display or Display()
        self.is_open = False
        """Whether the run directory is open: before that, events are only shown."""
        import_modules(config.imports)
        validate_trackers(config.trackers)
        configure_torch(config.threads)
        check_training_memory(config)
        role = "learner" if config.backend == "local" else "controller"
        self.policy = load_configured_policy(config, training=True, role=role)
        self.config = config = fill_task_options(config, self.policy.card)
        self.task = make_task(config.task.name, config.task.options)
        validate_config(config)
        self.algorithm = get_algorithm(config.learn.algorithm)
        self.monitors = make_evaluation_monitors(config, self.task)
        self.penalties = make_penalties(config, self.task, self.monitors)
        self.problems = make_problem_stream(config, self.task)
        validation = draw_validation(config, self.task)
        self.warnings = find_warnings(config, self.problems, validation)
        self.validation = validation[: config.evaluate.problems]
        self.validation_filter = ValidationFilter(validation, config.evaluate.problems)
        for stage in (self.task, *make_curriculum(config).values()):
            check_context_length(config, self.policy, stage)
        self.backend = make_backend(self.policy, config, self.log_event)
        self.computed_by = llama.describe_path(self.policy.model, self.policy.dtype)
        self.collector = RolloutCollector(self.policy, self.task, self.backend, config)
        # now: files may change later
        self.sources = hash_sources(config)
        self.data_manifest = describe_data(config, self.task, self.problems, len(self.validation))
        self.progress = Progress(data=self.problems.state())
        self.diagnostics = Diagnostics(config)
        stopping = "Stopping after this step, to save it. Press Ctrl-C again to stop at once."
        self.interruption = Interruption(lambda: self.display.warn(stopping))
        self.started = time.perf_counter()
        """Clock reading at which the run would have started without interruptions."""
        self.last_evaluation: dict[str, Any] | None = None
        self.exhausted_at: int | None = None

    # --- from start to summary -------------------------------------------------------------

    def train(self, *, accept_changes: bool = False) -> dict[str, Any]:
        """Train all steps, with evaluation before and after; return the summary that is also written
        to the run directory. If the directory holds an interrupted run of the same configuration,
        resume it from its newest valid checkpoint; `accept_changes`: also if its sources changed."""
        try:
            path = checkpointing.find_run_path(self.config)
            changes: list[str] = []
            if is_run_directory(path):
                checkpointing.check_same_config(path, self.config)
                changes = checkpointing.check_sources(path, self.sources, accept=accept_changes)
                if summary := checkpointing.finished_summary(path, self.config):
                    for damage in verify_run(path).damage:
                        self.display.warn(str(damage))
                    self.display.print(f"{path} is already finished. Its results:")
                    self.display.end(summary)
                    return summary
            else:
                self._check_judges()
            with RunDirectory(path, self.config) as self.directory:
                self.is_open = True
                self.penalties.attach(self.policy, path / "judge")
                for change in changes:
                    self.log_event("accepted_change", text=f"Accepted: {change}.")
                return self._train_in_directory()
        finally:
            self.backend.close()

    def _check_judges(self) -> None:
        """Raise if a judge gives no verdict: a new run that it would stop has no directory yet. A run that is
        resumed has the replies that it needs."""
        rewarding = [monitor for item in self.penalties.penalties for monitor in item.monitors]
        for monitor in (*self.monitors, *rewarding):
            if isinstance(monitor, JudgeMonitor):
                monitor.check_answers()

    def _train_in_directory(self) -> dict[str, Any]:
        config, path, display = self.config, self.directory.path, self.display
        display.start(config, path, self.policy, self.task)
        display.print(f"computed by {self.computed_by}", "dim")
        if config.backend == "monarch":
            processes = config.monarch.generators + config.monarch.learners
            display.print(
                f"waiting for {processes} processes to import PyTorch and load the model", "dim"
            )
        provenance = {
            "config": config.model_dump(mode="json"),
            "versions": software_versions(),
            "sources": self.sources,
        }
        self.checkpoints = CheckpointManager(
            config, self.directory, self.policy, provenance, display.log
        )
        checkpointing.restore_checkpoint(self)
        self.started = time.perf_counter() - self.progress.seconds
        self._write_validation()
        self._write_data_manifest()
        start_notes(path, config, self.progress.step)
        for text in self.warnings:
            self.log_event("warning", text=text)
        device = str(self.policy.model.device)
        if line := startup_banner(path, self.progress.step, config, device):
            display.print(line)
        with start_trackers(config.trackers, path, config, self.log_event) as self.trackers:
            for name, url in self.trackers.urls.items():
                display.print(f"tracked by {name}: {url}")
            with display, self.interruption:
                summary = self._train_steps()
            self.trackers.finish(summary, "finished" if "after" in summary else "interrupted")
        return summary

    def _train_steps(self) -> dict[str, Any]:
        """Run the loop; whatever ends it, save what has been learned."""
        directory, progress = self.directory, self.progress
        try:
            try:
                run_training_loop(self)
                return self._summarize(after=self.last_evaluation)
            except Interrupted:
                self.save_unsaved_step("interrupted")
                directory.log_event("interrupted", step=progress.step)
                return self._summarize(interrupted_at=progress.step)
            except RunError as error:
                directory.log_event("failed", step=progress.step, text=str(error))
                with suppress(RunError):  # the learner itself may be gone
                    self.save_unsaved_step("the run failed")
                raise type(error)(f"{error} {self._describe_saved()}") from error
        except ForcedStop:
            saved = self.checkpoints.saved_step
            directory.log_event("stopped", step=progress.step, saved=saved)
            text = f"Stopped at once. {self._describe_saved()} Repeat the command to resume."
            self.display.warn(text)
            return {"run": str(directory.path), "stopped_after": saved}

    def _describe_saved(self) -> str:
        step = self.checkpoints.saved_step
        path = self.directory.checkpoints / f"step-{step:06d}"
        return f"The last checkpoint is {path}." if step >= 0 else "No checkpoint was saved."

    def _summarize(self, **outcome: Any) -> dict[str, Any]:
        """Write the summary of a finished or interrupted run and show it."""
        config, progress, directory = self.config, self.progress, self.directory
        summary = {
            "task": config.task.name,
            "style": config.task.style.value,
            "algorithm": config.learn.algorithm,
            "model": config.model,
            "steps": config.steps,
            "seed": config.seed,
            "run": str(directory.path),
            "before": progress.before,
            **outcome,
            "steps_done": progress.step,
            "checkpoint": str(directory.checkpoints / f"step-{progress.step:06d}"),
            "rollout_log": asdict(directory.rollout_log.size),
            "seconds": round(time.perf_counter() - self.started, 3),
        }
        if self.exhausted_at is not None:
            summary["exhausted_at"] = self.exhausted_at
        self._write_data_manifest()
        write_curves(directory.path)
        note_result(directory.path, summary)
        directory.write_summary(summary)
        directory.log_event("end", step=progress.step)
        self.display.end(summary)
        return summary

    def _write_validation(self) -> None:
        """Write the validation problems, again if the file is missing or damaged: they follow from the
        configuration."""
        folder = self.directory.path / "data"
        folder.mkdir(exist_ok=True)
        file, temporary = folder / "validation.jsonl", folder / ".writing.jsonl"
        if self.validation:
            write_problem_file(temporary, self.validation)
            self.data_manifest["validation"] |= compute_checksum(temporary)
            os.replace(temporary, file)

    def _write_data_manifest(self) -> None:
        """Write where the problems come from, with the number of training problems drawn so far."""
        self.data_manifest["train"]["drawn"] = self.progress.data["drawn"]
        write_json(self.directory.path / "data" / "manifest.json", add_check(self.data_manifest))

    # --- a step ----------------------------------------------------------------------------

    def audit_reward(self, groups: list[Group]) -> None:
        """Say which terms of the reward read the CoT, from edited rollouts of the first step; raise if one of
        `reward.outcome_only` does."""
        reward = self.config.reward
        mixed = [
            r for samples in zip(*groups, strict=False) for r in samples
        ]  # many problems first
        chosen = [r for r in mixed if get_cot(r).strip()][: reward.audit_rollouts]
        if not chosen:
            return
        try:
            line = describe_reading(chosen, reward, self.penalties, self.task)
        except OutcomeOnlyError:
            raise
        except GlasshouseError as error:
            line = f"reward: which terms read the CoT is unknown: {error}"
        self.directory.log_event("reward_audit", step=1, text=line)
        self.display.print(line, "dim")

    def log_step(
        self,
        step: int,
        groups: list[Group],
        discarded: list[Group],
        metrics: dict[str, Any],
        timer: PhaseTimer,
    ) -> None:
        """Write the step's rollouts and metrics; show them; warn if the run cannot learn."""
        size = 0
        for logged in (discarded, groups):
            rollouts = [rollout for group in logged for rollout in group]
            if rollouts:
                size += self.directory.rollout_log.append(rollouts)
        timer.lap("log")
        timing = {
            "time": utc_timestamp(),
            **timer.seconds,
            **self.backend.timing(),
            **compute_throughput(groups, discarded, timer.seconds),
        }
        row = {"step": step, **metrics, "rollout_log_bytes": size, "timing": timing}
        self.directory.log_metrics(row)
        if self.config.logs_step(step):
            self.trackers.log(make_metrics("train", row))
        for kind, text in self.diagnostics.check(row).items():
            self.log_event("warning", step=step, warning=kind, text=text)
        self.display.step(row, groups)

    def complete_step(self, step: int, in_flight: list[Pending]) -> None:
        """Advance the progress: from here on a checkpoint contains this step."""
        progress = self.progress
        progress.step, progress.in_flight = step, in_flight
        progress.data = self.problems.state()
        progress.penalties = dict(self.penalties.weights)
        progress.seconds = time.perf_counter() - self.started

    def checkpoint_if_due(self, reward: float, *, is_last: bool) -> None:
        """Save a checkpoint if `config.checkpoints` asks for one after this step."""
        if reasons := self.checkpoints.reasons_to_save(self.progress, reward, is_last):
            self.checkpoints.save(self.progress, reasons, self.backend.state())

    def save_unsaved_step(self, reason: str) -> None:
        """Save a checkpoint of the last completed step unless it has one."""
        if self.checkpoints.saved_step != self.progress.step:
            self.checkpoints.save(self.progress, [reason], self.backend.state())

    # --- evaluation ------------------------------------------------------------------------

    def evaluate_if_due(self, *, is_last: bool) -> None:
        """Evaluate before the first step, after the last one and every `evaluate.every` steps."""
        progress, every = self.progress, self.config.evaluate.every
        is_due = is_last or progress.step == 0 or (every and progress.step % every == 0)
        if not is_due or progress.evaluated == progress.step:
            return
        self.last_evaluation = self._evaluate() if self.validation else None
        progress.evaluated = progress.step
        if progress.step == 0:
            progress.before = self.last_evaluation

    def _evaluate(self) -> dict[str, Any]:
        step = self.progress.step
        self.display.evaluating(step)
        problems, audit = self.validation_filter.select_clean(self.directory.path)
        self.directory.log_event("audit", step=step, **audit)
        if text := describe_removed(audit):
            self.display.warn(text)
        if "unreadable" in audit:
            self.display.warn(describe_unreadable(audit["unreadable"]))
        with self.interruption.interruptible():
            for pending in self.progress.in_flight:
                grade_groups(pending, self.config.reward)  # needs older weights: comes first
            reserve = [] if step else draw_reserve(self.config, self.task)
            results, rollouts = evaluate_policy(
                self.collector, problems, step, self.interruption.check, reserve, self.monitors
            )
        return_freed_memory()
        results["removed"] = audit["removed"]
        self.directory.rollout_log.append(rollouts)
        event = self.directory.log_event("evaluation", step=step, **results)
        self.trackers.log(make_metrics("evaluate", event))
        self.display.evaluated(step, results)
        found = self.diagnostics.check_evaluation(results, is_first=step == 0)
        for kind, text in found.items():
            self.log_event("warning", step=step, warning=kind, text=text)
        return results

    # --- events ----------------------------------------------------------------------------

    def log_event(self, kind: str, **details: Any) -> None:
        """Write an event, also one of the backend or of a tracker; show its `text` as a warning."""
        if self.is_open:
            self.directory.log_event(kind, **{"step": self.progress.step, **details})
        if "text" in details:
            self.display.warn(details["text"], details.get("warning", ""))

    def record_exhausted(self, error: ProblemsExhausted) -> None:
        """No training problem is left (`data.on_exhausted: stop`): the run ends here."""
        step = self.exhausted_at = self.progress.step
        self.directory.log_event("exhausted", step=step, text=str(error))
        self.display.warn(f"The run ends after step {step}: {error}")

    def record_new_epoch(self, step: int) -> None:
        """Every training problem has been used (`data.on_exhausted: restart`): they repeat."""
        epochs = self.problems.epochs
        self.directory.log_event("new_epoch", step=step, epochs=epochs)
        if epochs == 1:
            self.display.warn(
                f"Every training problem of {self.task.name} with these options has been used: they "
                f"repeat from step {step} on. data.on_exhausted=stop would end the run instead."
            )
