"""What surrounds the training loop: the run directory, checkpoints, trackers, display, interruption.

The loop calls one method per event (`log_step`, `checkpoint_if_due`, `evaluate_if_due`, …); what each
of them writes and prints is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from glasshouse.measurement.evaluate import evaluate
from glasshouse.measurement.held_out_filter import describe_unreadable
from glasshouse.rollout.collector import Group
from glasshouse.runs.run_directory import RunDirectory, utc_timestamp
from glasshouse.tasks.streams import ProblemsExhausted
from glasshouse.track.async_log import Trackers
from glasshouse.track.step_metrics import metrics_from_evaluation, metrics_from_step
from glasshouse.training.build import TrainingParts
from glasshouse.training.checkpointing import CheckpointManager, Progress
from glasshouse.training.diagnostics import Diagnostics
from glasshouse.training.display import Display
from glasshouse.training.interruption import Interruption
from glasshouse.training.metrics import PhaseTimer, compute_throughput


@dataclass(slots=True)
class Session:
    """One process's work on a run, from opening its directory to closing it."""

    parts: TrainingParts
    directory: RunDirectory
    display: Display
    interruption: Interruption
    trackers: Trackers
    checkpoints: CheckpointManager
    progress: Progress
    diagnostics: Diagnostics
    started: float = field(default=0.0)
    """Clock reading at which the run would have started without interruptions."""
    last_evaluation: dict[str, Any] | None = None
    exhausted_at: int | None = None

    def __post_init__(self) -> None:
        self.started = time.perf_counter() - self.progress.seconds

    # --- interruption ----------------------------------------------------------------------

    def interruptible(self) -> AbstractContextManager[None]:
        """A signal may end the run anywhere inside: nothing of the step has been written yet."""
        return self.interruption.interruptible()

    def check_interrupt(self) -> None:
        """End the run here if a signal has arrived."""
        self.interruption.check()

    # --- the step --------------------------------------------------------------------------

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
        for kind, logged in (("discarded", discarded), ("train", groups)):
            rollouts = [rollout for group in logged for rollout in group]
            if rollouts:
                size += self.directory.rollout_log.append(kind, step, rollouts)
        timer.lap("log")
        timing = {
            "time": utc_timestamp(),
            **timer.seconds,
            **self.parts.backend.timing(),
            **compute_throughput(groups, timer.seconds),
        }
        row = {"step": step, **metrics, "rollout_log_bytes": size, "timing": timing}
        self.directory.log_metrics(row)
        if self.parts.config.logs_step(step):
            self.trackers.log(metrics_from_step(row))
        for message in self.diagnostics.check(row):
            self.log_event("warning", step=step, text=message)
        self.display.step(row, groups)

    def complete_step(self, step: int, pending: list[Callable[[], list[Group]]]) -> None:
        """Advance the progress: from here on a checkpoint contains this step."""
        progress = self.progress
        progress.step, progress.pending = step, pending
        progress.data = self.parts.problems.state()
        progress.penalties = self.parts.penalties.state()
        progress.seconds = time.perf_counter() - self.started

    def checkpoint_if_due(self, reward: float, *, is_last: bool) -> None:
        """Save a checkpoint if `config.checkpoints` asks for one after this step."""
        if reasons := self.checkpoints.reasons_to_save(self.progress, reward, is_last):
            self.checkpoints.save(self.progress, reasons, self.parts.backend.state())

    def save_unsaved_step(self, reason: str) -> None:
        """Save a checkpoint of the last completed step unless it has one."""
        if self.checkpoints.saved_step != self.progress.step:
            self.checkpoints.save(self.progress, [reason], self.parts.backend.state())

    # --- evaluation ------------------------------------------------------------------------

    def evaluate_if_due(self, *, is_last: bool) -> None:
        """Evaluate before the first step, after the last one and every `evaluate.every` steps."""
        progress, every = self.progress, self.parts.config.evaluate.every
        is_due = is_last or progress.step == 0 or (every and progress.step % every == 0)
        if not is_due or progress.evaluated == progress.step:
            return
        self.last_evaluation = self._evaluate() if self.parts.held_out else None
        progress.evaluated = progress.step
        if progress.step == 0:
            progress.before = self.last_evaluation

    def _evaluate(self) -> dict[str, Any]:
        step = self.progress.step
        self.display.evaluating(step)
        held_out, audit = self.parts.held_out_filter.select_clean(self.directory.rollout_log.folder)
        self.directory.log_event("audit", step=step, **audit)
        if audit["removed"]:
            self.display.warn(
                f"{audit['removed']} of {audit['checked']} held-out problems have been trained on. They are "
                f"replaced by others; {audit['left']} are left."
            )
        if "unreadable" in audit:
            self.display.warn(describe_unreadable(audit["unreadable"]))
        with self.interruptible():
            for groups in self.progress.pending:
                groups()  # they need older weights: finish them first
            results, rollouts = evaluate(
                self.parts.collector, held_out, step, self.interruption.check
            )
        results["removed"] = audit["removed"]
        self.directory.rollout_log.append("validation", step, rollouts)
        event = self.directory.log_event("evaluation", step=step, **results)
        self.trackers.log(metrics_from_evaluation(event))
        self.display.evaluated(step, results)
        return results

    # --- events ----------------------------------------------------------------------------

    def log_event(self, kind: str, **details: Any) -> None:
        """Write an event; show its `text`, if it has one, as a warning."""
        self.directory.log_event(kind, **{"step": self.progress.step, **details})
        if "text" in details:
            self.display.warn(details["text"])

    def record_exhausted(self, error: ProblemsExhausted) -> None:
        """No training problem is left (`data.on_exhausted: stop`): the run ends here."""
        step = self.exhausted_at = self.progress.step
        self.directory.log_event("exhausted", step=step, text=str(error))
        self.display.warn(f"The run ends after step {step}: {error}")

    def record_new_epoch(self, step: int) -> None:
        """Every training problem has been used (`data.on_exhausted: restart`): they repeat."""
        epochs = self.parts.problems.epochs
        self.directory.log_event("new_epoch", step=step, epochs=epochs)
        if epochs == 1:
            self.display.warn(
                f"Every training problem of {self.parts.task.name} with these options has been used: they "
                f"repeat from step {step} on. data.on_exhausted=stop would end the run instead."
            )
