"""When a checkpoint is saved, what it says, and what a person is told of it."""

from __future__ import annotations

import hashlib
import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import transformers

from glasshouse import __version__
from glasshouse.config import CheckpointConfig
from glasshouse.learn import LearnerState
from glasshouse.models import Policy, save
from glasshouse.rollout.collector import Group
from glasshouse.store import RunDirectory, checkpoints
from glasshouse.store.checkpoints import Checkpoint, Snapshot
from glasshouse.store.rollout_rows import decode, encode, rollout_of, row
from glasshouse.store.run_directory import now


@dataclass(slots=True)
class Progress:
    """Where a run stands after a whole step: everything but tensors. A checkpoint holds it."""

    step: int = 0
    reward: float | None = None
    """The last step's mean reward."""
    best: float | None = None
    best_step: int = 0
    evaluated: int = -1
    """The last step after which the model was evaluated."""
    before: dict[str, Any] | None = None
    """The evaluation before training."""
    data: dict[str, Any] = field(default_factory=dict)
    """Where the stream of problems stands. Noise needs no counter of its own: it is keyed by step."""
    pressures: dict[str, float] = field(default_factory=dict)
    """Where the weights of the reward's pressures stand: adaptive ones move."""
    seconds: float = 0.0
    ahead: Callable[[], list[Group]] | None = None
    """With a lag: waits for the next step's groups. Their problems are drawn already."""


@dataclass(slots=True)
class CheckpointManager:
    """Saves checkpoints of one run and prunes the old ones.

    Example: `if why := keeper.step(progress, reward, end): keeper.save(progress, why, learner_state)`
    """

    config: CheckpointConfig
    directory: RunDirectory
    policy: Policy
    run_facts: dict[str, Any]
    """What every checkpoint of the run says: config, versions, the start's fingerprint."""
    say: Callable[[str], None]
    saved: int = -1
    """The last step that has a checkpoint."""

    def step(self, progress: Progress, reward: float, end: bool) -> list[str]:
        """Take a step's mean reward into the progress; returns the reasons to save, if any."""
        config, best = self.config, progress.best
        limit = math.inf if config.save_above_reward is None else config.save_above_reward
        reasons = []
        if config.every and progress.step % config.every == 0:
            reasons.append(f"every {config.every} steps")
        if (-math.inf if progress.reward is None else progress.reward) <= limit < reward:
            reasons.append(f"reward {reward:.3f} above {limit:g}")
        if best is None or reward > best:
            if config.save_best and reward > (
                -math.inf if best is None else best + config.min_improvement
            ):
                since = "the first" if best is None else f"{best:.3f} at step {progress.best_step}"
                reasons.append(f"reward {reward:.3f} is a new best ({since})")
            progress.best, progress.best_step = reward, progress.step
        if end:
            reasons.append("the end")
        progress.reward = reward
        return reasons

    def save(self, progress: Progress, reasons: list[str], learner: LearnerState) -> Checkpoint:
        """Write, verify, and only then prune."""
        state = {
            "step": progress.step,
            "reward": progress.reward,
            "why": "; ".join(reasons),
            "time": now(),
            "version": learner.version,
            "best": progress.best,
            "best_step": progress.best_step,
            "evaluated": progress.evaluated,
            "before": progress.before,
            "data": progress.data,
            "pressures": progress.pressures,
            "seconds": round(progress.seconds, 3),
            "record": self.directory.position(),
            **self.run_facts,
        }
        adapted = hasattr(self.policy.model, "peft_config")
        weights = {} if adapted else self.policy.weights()
        ahead = [r for group in progress.ahead() for r in group] if progress.ahead else []
        snapshot = Snapshot(
            state, weights, learner.tensors, partial(save, self.policy), encode(map(row, ahead))
        )
        started = time.perf_counter()
        made = checkpoints.write(self.directory.checkpoints, snapshot)
        self.saved = progress.step
        self._tell_saved(made, reasons, time.perf_counter() - started)
        self._prune()
        return made

    def _tell_saved(self, made: Checkpoint, reasons: list[str], seconds: float) -> None:
        where = made.path.relative_to(self.directory.path)
        self.directory.event(
            "save",
            step=made.step,
            path=str(where),
            why=made.why,
            reward=made.reward,
            bytes=made.bytes,
            seconds=round(seconds, 4),
        )
        if any(reason.startswith("reward") for reason in reasons):
            self.say(f"step {made.step:>4}  saved {where.name}: {made.why}")

    def _prune(self) -> None:
        for gone in checkpoints.prune(self.directory.checkpoints, self.config.keep):
            where = gone.path.relative_to(self.directory.path)
            self.directory.event("prune", path=str(where), why=gone.why, bytes=gone.bytes)
            self.say(f"           pruned {where.name}, {gone.bytes / 1e6:.1f} MB freed: {gone.why}")


def restored(state: dict[str, Any], ahead: bytes) -> Progress:
    """The progress that a checkpoint tells of."""
    names = ("step", "reward", "best", "best_step", "evaluated", "before", "data", "seconds")
    progress = Progress(
        **{name: state[name] for name in names}, pressures=state.get("pressures", {})
    )
    if ahead:
        groups: dict[int, Group] = {}
        for rollout in map(rollout_of, decode(ahead)):
            groups.setdefault(rollout.group, []).append(rollout)
        progress.ahead = partial(list, groups.values())
    return progress


def versions() -> dict[str, str]:
    """What else a run's bits depend on."""
    return {
        "glasshouse": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def fingerprint(policy: Policy) -> str:
    """A digest of the weights that a run starts from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(policy.weights().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
