"""Find the run that a configuration describes, check that it may be resumed, and restore it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.config.loading import diff_configs
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, ModelError, RunError
from glasshouse.files import write_text
from glasshouse.learn.learner_state import LearnerState
from glasshouse.models.provenance import source_commit
from glasshouse.runs import checkpoints, verify
from glasshouse.runs.checkpoints import Checkpoint
from glasshouse.runs.run_config import CONFIG, config_text, is_run_directory, load_run_config
from glasshouse.runs.run_directory import (
    LOCK,
    RunDirectory,
    is_locked,
    list_numbered_runs,
    load_summary,
    next_run_path,
)
from glasshouse.terminal import shell_command
from glasshouse.training.checkpointing import progress_from_state

if TYPE_CHECKING:
    from glasshouse.training.run import TrainingRun

FREE_SECTIONS = {
    "out", "steps", "imports", "log_every", "checkpoints", "diagnostics", "monitor", "backend",
    "monarch", "hosts", "trackers",
}  # fmt: skip
"""Keys that do not change what a step computes: a run may be resumed with other values."""


def find_run_path(config: Config) -> Path:
    """Return `out`; if it is empty, the last numbered run of the same configuration if that one is
    unfinished, else the next free number."""
    if config.out:
        return Path(config.out)
    for path in list_numbered_runs(config)[-1:]:
        is_idle = is_run_directory(path) and not is_locked(path)
        is_unfinished = is_idle and not finished_summary(path, config)
        if is_unfinished and _has_config(path, config):
            return path
    return next_run_path(config)


def _has_config(path: Path, config: Config) -> bool:
    """Does the run have this configuration? A run whose config.yaml is damaged does not."""
    try:
        return set(diff_configs(load_run_config(path), config)) <= {"out"}
    except (RunError, ConfigError):
        return False


def finished_summary(path: Path, config: Config) -> dict[str, Any] | None:
    """Return the summary of a run that has done all the steps of the configuration, else None."""
    summary = load_summary(path)
    if summary is None or "interrupted_at" in summary:
        return None
    is_finished = summary["steps_done"] == config.steps or "exhausted_at" in summary
    return summary if is_finished else None


def check_same_config(path: Path, config: Config) -> None:
    """Raise if the run at `path` has a configuration that gives other numbers."""
    previous = load_run_config(path)
    free = set(FREE_SECTIONS)
    # a schedule is stretched over all steps, and nothing is generated ahead of the last one
    if config.learn.lr_schedule != "constant" or config.max_offpolicy_steps:
        free -= {"steps"}
    differences = diff_configs(previous, config)
    changed = {key: pair for key, pair in differences.items() if key.split(".")[0] not in free}
    if changed:
        listed = ", ".join(f"{key} ({old!r} → {new!r})" for key, (old, new) in changed.items())
        raise RunError(
            f"{path} holds a run with another configuration: {listed}. Choose another directory with "
            f"out=…, or branch off with: {shell_command(['glasshouse', 'resume', path, '--fork', 'NEW'])} "
            + " ".join(f"{key}=…" for key in changed)
        )
    summary = load_summary(path)
    if summary and config.steps < summary["steps_done"]:
        raise RunError(
            f"{path} has already done {summary['steps_done']} steps, more than steps={config.steps}. "
            "Raise steps, or choose another directory with out=…."
        )


def check_provenance(path: Path, state: dict[str, Any], provenance: dict[str, Any]) -> list[str]:
    """Raise if the starting model changed; return warnings about changed software versions."""
    if state["start"] != provenance["start"]:
        raise RunError(
            f"The weights of {provenance['config']['model']} differ from those that {path} was started from. "
            "Restore that model, or start a new run with another out=…."
        )
    before, now = state["versions"], provenance["versions"]
    return [
        f"This run was started with {name} {before.get(name)} and continues with {now[name]}: the results "
        "may differ in their last bits from those of an uninterrupted run."
        for name in now
        if now[name] != before.get(name)
    ]


def fork_run(source: Path, target: Path, config: Config) -> None:
    """Create a run that starts with the logs and the newest valid checkpoint of another one."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} is not empty; --fork needs a new directory.")
    checkpoint, _ = checkpoints.newest_checkpoint(source / "checkpoints")
    if checkpoint is None:
        raise RunError(f"{source} has no valid checkpoint to branch off from.")
    temporary = target.with_name(f".{target.name}.forking")
    shutil.rmtree(temporary, ignore_errors=True)
    ignored = shutil.ignore_patterns("checkpoints", LOCK, "summary.json", "track")
    shutil.copytree(source, temporary, ignore=ignored)
    shutil.copytree(checkpoint.path, temporary / "checkpoints" / checkpoint.path.name)
    write_text(temporary / CONFIG, config_text(config))
    if target.exists():
        target.rmdir()
    os.replace(temporary, target)


def restore_checkpoint(run: TrainingRun) -> None:
    """Restore the newest valid checkpoint and truncate the rollout log and the metrics to it. Without
    a checkpoint, the run starts from the beginning."""
    directory, config, display = run.directory, run.config, run.display
    checkpoint, warnings = find_checkpoint(directory)
    if checkpoint:
        is_sharded = config.learn.sharding != "none"
        state, weights, learner = checkpoints.read_checkpoint(
            checkpoint.path, with_learner=not is_sharded
        )
        damage = [
            *verify.verify_rollout_log(directory.path, state),
            *verify.verify_derived_files(directory.path, state),
        ]
        warnings += [str(item) for item in damage]
    for warning in warnings:
        directory.log_event("damaged", text=warning)
        display.warn(warning)
    if checkpoint is None:
        if directory.has_results:
            display.warn("The run was interrupted before its first checkpoint; it starts over.")
            directory.truncate_to({})
        directory.log_event("start", seed=config.seed, model=config.model, commit=source_commit())
        return
    for warning in check_provenance(directory.path, state, run.checkpoints.provenance):
        directory.log_event("warning", text=warning)
        display.warn(warning)
    try:
        if not config.learn.lora_rank:
            run.policy.load_weights(weights)
        folder = checkpoint.path.resolve() if is_sharded else None
        run.backend.restore(LearnerState(state["version"], learner, folder=folder))
    except ModelError as error:
        raise RunError(
            f"The checkpoint {checkpoint.path} does not fit this run: {error} Its files match their "
            "checksums, so they were replaced. Delete its folder to resume from an older checkpoint."
        ) from None
    next_rollouts = checkpoints.read_next_rollouts(checkpoint.path)
    run.progress = progress_from_state(state, next_rollouts, run.policy)
    run.problems.restore(run.progress.data)
    run.penalties.weights |= run.progress.penalties
    run.checkpoints.saved_step = checkpoint.step
    for row in directory.truncate_to(state["log_position"], checkpoint.step):
        run.diagnostics.check(row)
    directory.log_event(
        "resume", step=checkpoint.step, path=checkpoint.path.name, commit=source_commit()
    )
    display.resumed(checkpoint.step, checkpoint.path)


def find_checkpoint(directory: RunDirectory) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest valid checkpoint, and a warning for each newer one that is damaged."""
    checkpoints.remove_partial(directory.checkpoints)
    newest, damaged = checkpoints.newest_checkpoint(directory.checkpoints)
    if damaged and not newest:
        raise RunError(
            f"No checkpoint of {directory.path} is valid ({damaged[0].path.name}: {damaged[0].damage[0]}), "
            "so the run cannot be resumed. Restore a copy of a checkpoint, or remove the checkpoints "
            "folder to start over."
        )
    return newest, [
        f"The checkpoint {bad.path.name} is damaged and was skipped: {'; '.join(bad.damage)}."
        for bad in damaged
    ]
