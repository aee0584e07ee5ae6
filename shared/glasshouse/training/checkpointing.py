"""When a checkpoint is saved, what it contains, which ones are kept; and how a run is resumed from one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glasshouse.config.loading import diff_configs
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError, ModelError, RunError
from glasshouse.learn.learner import LearnerState
from glasshouse.models.devices import is_large
from glasshouse.models.policy import Policy, save_policy
from glasshouse.models.sources import Sources, find_changes, source_commit
from glasshouse.rollout.collector import Group, Pending, grade_groups
from glasshouse.runs import checkpoints, verify
from glasshouse.runs.checkpoints import END_OF_TRAINING, NEXT_ROLLOUTS, Checkpoint
from glasshouse.runs.rows import decode_rows, encode_rows, from_row, to_row
from glasshouse.runs.run_directory import (
    RunDirectory,
    is_locked,
    is_run_directory,
    load_run_config,
    load_summary,
    utc_timestamp,
)
from glasshouse.terminal import count_noun, format_bytes, shell_command

if TYPE_CHECKING:
    from glasshouse.training.run import TrainingRun


@dataclass(slots=True)
class Progress:
    """How far a run is after a completed step: everything except tensors. A checkpoint contains it."""

    step: int = 0
    reward: float | None = None
    """Mean reward of the last step."""
    best: float | None = None
    """Highest mean reward so far, and its step."""
    best_step: int = 0
    reward_saved: int | None = None
    """The last step that was saved because of its reward."""
    evaluated: int = -1
    """The last step after which the model was evaluated."""
    before: dict[str, Any] | None = None
    """The evaluation before training."""
    data: dict[str, Any] = field(default_factory=dict)
    """State of the problem stream. Sampling noise needs no state: it is keyed by step."""
    penalties: dict[str, float] = field(default_factory=dict)
    """Current weights of adaptive penalties."""
    seconds: float = 0.0
    in_flight: list[Pending] = field(default_factory=list)
    """With `max_offpolicy_steps`: the groups of the next steps, oldest first."""


SAVED_FIELDS = (
    "step", "reward", "best", "best_step", "reward_saved", "evaluated", "before", "data", "penalties",
)  # fmt: skip
LARGE_REWARD_INTERVAL = 10
"""`checkpoints.reward_interval` of large models."""


def save_checkpoint(
    folder: Path,
    state: dict[str, Any],
    policy: Policy,
    learner: LearnerState,
    *,
    merge_adapters: bool = True,
    next_rollouts: bytes = b"",
) -> Checkpoint:
    """Write a checkpoint of a run, or of supervised training."""
    has_adapters = hasattr(policy.model, "peft_config")
    return checkpoints.write_checkpoint(
        folder,
        state,
        weights={} if has_adapters else {n: w.cpu() for n, w in policy.weights().items()},
        learner=learner.tensors,
        save_model=partial(save_policy, policy, merge_adapters=merge_adapters),
        save_shards=learner.save_shards,
        next_rollouts=next_rollouts,
    )


@dataclass(slots=True)
class CheckpointManager:
    """Saves the checkpoints of one run and prunes old ones.

    Example: `if reasons := manager.reasons_to_save(progress, reward, is_last): manager.save(…)`
    """

    config: Config
    directory: RunDirectory
    policy: Policy
    provenance: dict[str, Any]
    """Written into every checkpoint: config, software versions, hashes of the sources."""
    log: Callable[[str], None]
    saved_step: int = -1
    """The last step that has a checkpoint."""

    @property
    def reward_interval(self) -> int:
        """The least number of steps between two saves because of the reward."""
        default = LARGE_REWARD_INTERVAL if is_large(self.policy.model) else 1
        return self.config.checkpoints.reward_interval or default

    def reasons_to_save(self, progress: Progress, reward: float, is_last: bool) -> list[str]:
        """Update the progress with a step's mean reward; return why to save, or an empty list."""
        config, best, step = self.config.checkpoints, progress.best, progress.step
        periodic = f"every {count_noun(config.every, 'step')}"
        reasons = [periodic] if config.every and step % config.every == 0 else []
        by_reward = []
        if config.save_above_reward is not None and reward > config.save_above_reward:
            by_reward.append(f"reward {reward:.3f} above {config.save_above_reward:g}")
        if best is None or reward > best:
            if config.save_best and (best is None or reward > best + config.min_improvement):
                before = "first" if best is None else f"{best:.3f} at step {progress.best_step}"
                by_reward.append(f"reward {reward:.3f} is a new best ({before})")
            progress.best, progress.best_step = reward, step
        last = progress.reward_saved
        if by_reward and (last is None or step - last >= self.reward_interval):
            reasons += by_reward
            progress.reward_saved = step
        if is_last:
            reasons.append(END_OF_TRAINING)
        progress.reward = reward
        return reasons

    def save(self, progress: Progress, reasons: list[str], learner: LearnerState) -> Checkpoint:
        """Write and verify a checkpoint, then prune."""
        state = {
            **{name: getattr(progress, name) for name in SAVED_FIELDS},
            "reason": "; ".join(reasons),
            "time": utc_timestamp(),
            "version": learner.version,
            "seconds": round(progress.seconds, 3),
            "log_position": self.directory.get_position(),
            **self.provenance,
        }
        in_flight = [grade_groups(p, self.config.reward) for p in progress.in_flight]
        rollouts = [r for groups in in_flight for group in groups for r in group]
        next_rollouts = encode_rows(map(to_row, rollouts))
        started = time.perf_counter()
        checkpoint = save_checkpoint(
            self.directory.checkpoints,
            state,
            self.policy,
            learner,
            merge_adapters=self.config.checkpoints.merge_adapters,
            next_rollouts=next_rollouts,
        )
        self.saved_step = progress.step
        self._log_save(checkpoint, time.perf_counter() - started)
        removed = self._prune()
        if progress.step == progress.reward_saved == progress.best_step:  # its reward has increased
            names = f"; removed {', '.join(removed)}" if removed else ""
            self.log(f"step {progress.step:>4}  saved, {checkpoint.why_saved}{names}")
        return checkpoint

    def _log_save(self, checkpoint: Checkpoint, seconds: float) -> None:
        self.directory.log_event(
            "save",
            step=checkpoint.step,
            path=str(checkpoint.path.relative_to(self.directory.path)),
            reason=checkpoint.why_saved,
            reward=checkpoint.reward,
            bytes=checkpoint.bytes,
            seconds=round(seconds, 4),
        )

    def _prune(self) -> list[str]:
        """Delete what is not to be kept; return the names of what was removed."""
        found = checkpoints.prune_checkpoints(
            self.directory.checkpoints, self.config.checkpoints.keep
        )
        for removed, reason in found:
            path = str(removed.path.relative_to(self.directory.path))
            self.directory.log_event("prune", path=path, reason=reason, bytes=removed.bytes)
        return [f"{removed.name} ({format_bytes(removed.bytes)})" for removed, _ in found]


def read_progress(path: Path, state: dict[str, Any], policy: Policy) -> Progress:
    """Return the progress that a checkpoint contains, with the groups of later steps that were generated and
    graded before it."""
    saved = {name: state[name] for name in SAVED_FIELDS}
    progress, file = Progress(**saved, seconds=float(state["seconds"])), path / NEXT_ROLLOUTS
    steps: dict[int, dict[int, Group]] = {}
    for rollout in map(from_row, decode_rows(file.read_bytes() if file.exists() else b"")):
        steps.setdefault(rollout.step, {}).setdefault(rollout.group, []).append(rollout)
    for by_number in steps.values():
        groups = list(by_number.values())
        firsts = [group[0] for group in groups]
        progress.in_flight.append(
            Pending(
                policy=policy,
                seed=firsts[0].seed,
                step=firsts[0].step,
                split=firsts[0].split,
                problems=[r.problem for r in firsts],
                chats=[r.messages for r in firsts],
                prompts=[(r.prompt, r.prompt_tokens) for r in firsts],
                chunks=[[[r.completion for r in group] for group in groups]],
                received=firsts[0].time,
                groups=groups,
            )
        )
    return progress


# --- resuming -------------------------------------------------------------------------------

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
    prefix = f"{config.task.name}-{config.learn.algorithm}-"
    endings = [path.name.removeprefix(prefix) for path in Path("runs").glob(f"{prefix}*")]
    last = max((int(text) for text in endings if re.fullmatch("[0-9]+", text)), default=0)
    path = Path("runs", f"{prefix}{last}")
    if is_run_directory(path) and not is_locked(path) and not finished_summary(path, config):
        with suppress(RunError, ConfigError):  # its config.yaml is damaged
            if set(diff_configs(load_run_config(path), config)) <= {"out"}:
                return path
    return Path("runs", f"{prefix}{last + 1}")


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
            f"out=…; model={path}/checkpoints/step-… starts that run from its weights."
        )
    summary = load_summary(path)
    if summary and config.steps < summary["steps_done"]:
        raise RunError(
            f"{path} has already done {summary['steps_done']} steps, more than steps={config.steps}. "
            "Raise steps, or choose another directory with out=…."
        )


def check_sources(path: Path, sources: Sources, *, accept: bool) -> list[str]:
    """Return what the run was made from and is different now; raise instead unless the user accepts it."""
    changes = find_changes(checkpoints.read_newest_state(path / "checkpoints"), sources)
    if changes and not accept:
        raise RunError(
            f"{path} was made from something else: {'; '.join(changes)}. Restore it, or start a new run "
            "with another out=…. To continue with the change, which the run's events then record: "
            + shell_command(["glasshouse", "resume", path, "--accept-changes"])
        )
    return changes


def restore_checkpoint(run: TrainingRun) -> None:
    """Restore the newest valid checkpoint and truncate the rollout log and the metrics to it. Without
    a checkpoint, the run starts from the beginning."""
    directory, config, display = run.directory, run.config, run.display
    checkpoints.remove_partial(directory.checkpoints)
    checkpoint, damaged = checkpoints.newest_checkpoint(directory.checkpoints)
    if damaged and not checkpoint:
        raise RunError(
            f"No checkpoint of {directory.path} is valid ({damaged[0].name}: {damaged[0].damage[0]}), "
            "so the run cannot be resumed. Restore a copy of a checkpoint, or remove the checkpoints "
            "folder to start over."
        )
    warnings = [
        f"The checkpoint {bad.name} is damaged and was skipped: {'; '.join(bad.damage)}."
        for bad in damaged
    ]
    if checkpoint:
        state, weights, learner = checkpoints.read_checkpoint(checkpoint.path)
        warnings += map(str, verify.verify_rollout_log(directory.path, state))
        warnings += map(str, verify.verify_derived_files(directory.path, state))
    for warning in warnings:
        directory.log_event("damaged", text=warning)
        display.warn(warning)
    if checkpoint is None:
        if directory.has_results:
            display.warn("The run was interrupted before its first checkpoint; it starts over.")
            directory.truncate_to({})
        directory.log_event("start", seed=config.seed, model=config.model, commit=source_commit())
        return
    for name, version in run.checkpoints.provenance["versions"].items():
        if version != (before := state["versions"].get(name)):
            run.log_event(
                "warning",
                text=f"This run was started with {name} {before} and continues with {version}: the results may "
                "differ in their last bits from those of an uninterrupted run.",
            )
    try:
        if not config.learn.lora_rank:
            run.policy.load_weights(weights)
        is_sharded = config.learn.sharding != "none"  # else the weights are those of the policy
        folder = checkpoint.path.resolve() if is_sharded else None
        run.backend.restore(LearnerState(state["version"], learner, folder=folder))
    except ModelError as error:
        raise RunError(
            f"The checkpoint {checkpoint.path} does not fit this run: {error} Its files match their "
            "checksums, so they were replaced. Delete its folder to resume from an older checkpoint."
        ) from None
    run.progress = read_progress(checkpoint.path, state, run.policy)
    run.problems.restore(run.progress.data)
    run.penalties.weights |= run.progress.penalties
    run.checkpoints.saved_step = checkpoint.step
    for row in directory.truncate_to(state["log_position"], checkpoint.step):
        run.diagnostics.check(row)
    directory.log_event(
        "resume", step=checkpoint.step, path=checkpoint.path.name, commit=source_commit()
    )
    display.resumed(checkpoint.step, checkpoint.path)
