"""When a checkpoint is saved, what it contains, and which ones are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.generate.engines import ReadyCompletions
from glasshouse.learn.learner_state import LearnerState
from glasshouse.models.policy import Policy, save_policy
from glasshouse.rollout.collector import Group, Pending, grade_groups
from glasshouse.runs import checkpoints
from glasshouse.runs.checkpoints import END_OF_TRAINING, Checkpoint, Snapshot
from glasshouse.runs.rows import decode_rows, encode_rows, from_row, to_row
from glasshouse.runs.run_directory import RunDirectory, utc_timestamp
from glasshouse.terminal import count_noun


@dataclass(slots=True)
class Progress:
    """How far a run is after a completed step: everything except tensors. A checkpoint contains it."""

    step: int = 0
    reward: float | None = None
    """Mean reward of the last step."""
    best: float | None = None
    """Highest mean reward so far, and its step."""
    best_step: int = 0
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


SAVED_FIELDS = ("step", "reward", "best", "best_step", "evaluated", "before", "data", "penalties")


@dataclass(slots=True)
class CheckpointManager:
    """Saves the checkpoints of one run and prunes old ones.

    Example: `if reasons := manager.reasons_to_save(progress, reward, is_last): manager.save(…)`
    """

    config: Config
    directory: RunDirectory
    policy: Policy
    provenance: dict[str, Any]
    """Written into every checkpoint: config, software versions, fingerprint of the starting weights."""
    log: Callable[[str], None]
    saved_step: int = -1
    """The last step that has a checkpoint."""

    def reasons_to_save(self, progress: Progress, reward: float, is_last: bool) -> list[str]:
        """Update the progress with a step's mean reward; return why to save, or an empty list."""
        config, best = self.config.checkpoints, progress.best
        threshold = math.inf if config.save_above_reward is None else config.save_above_reward
        previous = -math.inf if progress.reward is None else progress.reward
        reasons = []
        if config.every and progress.step % config.every == 0:
            reasons.append(f"every {count_noun(config.every, 'step')}")
        saves_always = config.save_above_reward_when == "always"
        if reward > threshold and (saves_always or previous <= threshold):
            reasons.append(f"reward {reward:.3f} above {threshold:g}")
        if best is None or reward > best:
            improved = best is None or reward > best + config.min_improvement
            if config.save_best and improved:
                before = "first" if best is None else f"{best:.3f} at step {progress.best_step}"
                reasons.append(f"reward {reward:.3f} is a new best ({before})")
            progress.best, progress.best_step = reward, progress.step
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
        has_adapters = hasattr(self.policy.model, "peft_config")
        in_flight = [grade_groups(p, self.config.reward) for p in progress.in_flight]
        rollouts = [r for groups in in_flight for group in groups for r in group]
        snapshot = Snapshot(
            state=state,
            weights={} if has_adapters else {n: w.cpu() for n, w in self.policy.weights().items()},
            learner=learner.tensors,
            save_shards=learner.save_shards,
            save_model=partial(save_policy, self.policy),
            next_rollouts=encode_rows(map(to_row, rollouts)),
        )
        started = time.perf_counter()
        checkpoint = checkpoints.write_checkpoint(self.directory.checkpoints, snapshot)
        self.saved_step = progress.step
        self._report_saved(checkpoint, time.perf_counter() - started)
        self._prune()
        return checkpoint

    def _report_saved(self, checkpoint: Checkpoint, seconds: float) -> None:
        path = checkpoint.path.relative_to(self.directory.path)
        self.directory.log_event(
            "save",
            step=checkpoint.step,
            path=str(path),
            reason=checkpoint.why_saved,
            reward=checkpoint.reward,
            bytes=checkpoint.bytes,
            seconds=round(seconds, 4),
        )
        self.log(f"step {checkpoint.step:>4}  saved {path.name}: {checkpoint.why_saved}")

    def _prune(self) -> None:
        for removed, reason in checkpoints.prune_checkpoints(
            self.directory.checkpoints, self.config.checkpoints.keep
        ):
            path = removed.path.relative_to(self.directory.path)
            self.directory.log_event("prune", path=str(path), reason=reason, bytes=removed.bytes)
            self.log(f"pruned {path.name}, {removed.bytes / 1e6:.1f} MB freed: {reason}")


def progress_from_state(state: dict[str, Any], next_rollouts: bytes, policy: Policy) -> Progress:
    """Return the progress that a checkpoint contains."""
    progress = Progress(
        **{name: state[name] for name in SAVED_FIELDS}, seconds=float(state["seconds"])
    )
    steps: dict[int, dict[int, Group]] = {}
    for rollout in map(from_row, decode_rows(next_rollouts)):
        steps.setdefault(rollout.step, {}).setdefault(rollout.group, []).append(rollout)
    progress.in_flight = [
        _restore_pending(list(groups.values()), policy) for groups in steps.values()
    ]
    return progress


def _restore_pending(groups: list[Group], policy: Policy) -> Pending:
    """Return the groups of a later step, which were generated and graded before the checkpoint."""
    firsts = [group[0] for group in groups]
    return Pending(
        policy=policy,
        seed=firsts[0].seed,
        step=firsts[0].step,
        split=firsts[0].split,
        problems=[r.problem for r in firsts],
        chats=[r.messages for r in firsts],
        prompts=[(r.prompt, r.prompt_tokens) for r in firsts],
        chunks=ReadyCompletions([[[r.completion for r in group] for group in groups]]),
        received=firsts[0].time,
        groups=groups,
    )
