"""A training run from start to summary: open or resume the run directory, train, write the summary."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glasshouse.checksums import add_check, compute_checksum
from glasshouse.config.schema import Config
from glasshouse.errors import RunError
from glasshouse.files import write_json
from glasshouse.measurement.evaluation_setup import describe_shortage
from glasshouse.models.provenance import fingerprint_weights, software_versions
from glasshouse.runs.run_directory import RunDirectory
from glasshouse.runs.verify import verify_run
from glasshouse.tasks.problem_files import write_problem_file
from glasshouse.track.async_log import start_trackers
from glasshouse.training import resume
from glasshouse.training.build import build_training
from glasshouse.training.checkpointing import CheckpointManager, Progress
from glasshouse.training.data_manifest import describe_data
from glasshouse.training.diagnostics import Diagnostics
from glasshouse.training.display import Display, QuietDisplay
from glasshouse.training.interruption import ForcedStop, Interrupted, Interruption
from glasshouse.training.loop import run_training_loop
from glasshouse.training.session import Session


class Trainer:
    """One run, built from its configuration.

    Example: `Trainer(config, TerminalDisplay()).train()["after"]["pass_at_1"]`
    """

    def __init__(self, config: Config, display: Display | None = None) -> None:
        self.display = display or QuietDisplay()
        self.directory: RunDirectory | None = None
        self.parts = build_training(config, self._log_event)
        self.config, self.backend = self.parts.config, self.parts.backend
        self.data_manifest = describe_data(self.parts)  # now: problem files may change later
        self.progress = Progress(data=self.parts.problems.state())

    def train(self) -> dict[str, Any]:
        """Train all steps, with evaluation before and after; return the summary that is also written
        to the run directory. If the directory holds an interrupted run of the same configuration,
        resume it from its newest valid checkpoint."""
        try:
            path = resume.find_run_path(self.config)
            if resume.is_run_directory(path):
                resume.check_same_config(path, self.config)
                if summary := resume.finished_summary(path, self.config):
                    for damage in verify_run(path).damage:
                        self.display.warn(str(damage))
                    self.display.finished_before(summary)
                    return summary
            with RunDirectory.open(path, self.config) as self.directory:
                return self._train_in(self.directory)
        finally:
            self.backend.close()

    def _train_in(self, directory: RunDirectory) -> dict[str, Any]:
        config, parts = self.config, self.parts
        self.display.start(config, directory.path, parts.policy, parts.task)
        facts = {
            "config": config.model_dump(mode="json"),
            "versions": software_versions(),
            "start": fingerprint_weights(parts.policy),
        }
        diagnostics = Diagnostics(config)
        restored = resume.restore_checkpoint(directory, parts, facts, self.display, diagnostics)
        self.progress = restored or self.progress
        self._write_held_out(directory.path / "data")
        self._write_data_manifest(directory.path / "data")
        if text := describe_shortage(config, len(parts.held_out)):
            self._log_event("warning", text=text)
        self.display.ready(config, directory.path, parts.policy, self.progress.step)
        checkpoints = CheckpointManager(
            config.checkpoints, directory, parts.policy, facts, self.display.say,
            saved_step=restored.step if restored else -1,
        )  # fmt: skip
        with start_trackers(config.trackers, directory.path, config, self._log_event) as trackers:
            self.display.tracked(trackers.urls)
            with self.display, Interruption(self.display.stopping) as interruption:
                session = Session(
                    parts, directory, self.display, interruption, trackers, checkpoints,
                    self.progress, diagnostics,
                )  # fmt: skip
                summary = self._run_session(session)
            trackers.finish(summary, "finished" if "after" in summary else "interrupted")
        return summary

    def _run_session(self, session: Session) -> dict[str, Any]:
        """Run the loop; whatever ends it, save what has been learned."""
        directory, progress = session.directory, session.progress
        try:
            try:
                run_training_loop(self.parts, session)
                return self._summarize(session, after=session.last_evaluation)
            except Interrupted:
                session.save_unsaved_step("interrupted")
                directory.log_event("interrupted", step=progress.step)
                return self._summarize(session, interrupted_at=progress.step)
            except RunError as error:
                directory.log_event("failed", step=progress.step, text=str(error))
                with suppress(RunError):  # the learner itself may be gone
                    session.save_unsaved_step("the run failed")
                saved = session.checkpoints.saved_step
                path = directory.checkpoints / f"step-{saved:06d}"
                last = (
                    f"The last checkpoint is {path}." if saved >= 0 else "No checkpoint was saved."
                )
                raise type(error)(f"{error} {last}") from error
        except ForcedStop:
            saved = session.checkpoints.saved_step
            directory.log_event("stopped", step=progress.step, saved=saved)
            self.display.forced_stop(saved)
            return {"run": str(directory.path), "stopped_after": saved}

    def _summarize(self, session: Session, **outcome: Any) -> dict[str, Any]:
        """Write the summary of a finished or interrupted run and show it."""
        config, progress, directory = self.config, session.progress, session.directory
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
            "seconds": round(time.perf_counter() - session.started, 3),
        }
        if session.exhausted_at is not None:
            summary["exhausted_at"] = session.exhausted_at
        self._write_data_manifest(directory.path / "data")
        directory.write_summary(summary)
        directory.log_event("end", step=progress.step)
        self.display.end(summary)
        return summary

    def _write_held_out(self, folder: Path) -> None:
        """Write the held-out problems to `evaluation.jsonl`, again if the file is missing or damaged (they
        follow from the configuration); the problem stream keeps its state there."""
        folder.mkdir(exist_ok=True)
        file, temporary = folder / "evaluation.jsonl", folder / ".writing.jsonl"
        if self.parts.held_out:
            write_problem_file(temporary, self.parts.held_out)
            self.data_manifest["validation"] |= compute_checksum(temporary)
            os.replace(temporary, file)
        self.parts.problems.set_state_dir(folder)

    def _write_data_manifest(self, folder: Path) -> None:
        """Write where the problems come from, with the number of training problems drawn so far."""
        self.data_manifest["train"]["drawn"] = self.progress.data["drawn"]
        write_json(folder / "manifest.json", add_check(self.data_manifest))

    def _log_event(self, kind: str, **details: Any) -> None:
        """Log an event of the backend or of a tracker, and show its `text`."""
        if self.directory:
            self.directory.log_event(kind, **{"step": self.progress.step, **details})
        if "text" in details:
            self.display.warn(details["text"])
