"""What a step's rollouts say, as numbers: pure functions for the log."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from glasshouse.rollout.collector import Group
from glasshouse.types import Rule, StopReason


def of_groups(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards and their parts, group variance, accuracy, format, rules, lengths, entropy."""
    rollouts = [r for group in groups for r in group]
    rewards = [r.grade.reward for r in rollouts]
    lengths = [len(r.completion.tokens) for r in rollouts]
    tokens = max(1, sum(lengths))
    metrics = {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "accuracy": share(r.grade.correct for r in rollouts),
        "accuracy_strict": share(r.grade.strict for r in rollouts),
        "format": share(r.grade.tagged for r in rollouts),
        "ambiguous": share(r.grade.extracted.ambiguous for r in rollouts),
        "groups_all_right": share(all(r.grade.correct for r in group) for group in groups),
        "groups_all_wrong": share(not any(r.grade.correct for r in group) for group in groups),
        "groups_alike": share(len({r.grade.reward for r in group}) == 1 for group in groups),
        "length": statistics.fmean(lengths),
        "length_max": float(max(lengths)),
        "truncated": share(r.completion.stop is StopReason.LENGTH for r in rollouts),
        # minus the mean log-probability of what was sampled: an unbiased estimate of the entropy
        "entropy": -sum(sum(r.completion.logprobs) for r in rollouts) / tokens,
    }
    for part in rollouts[0].grade.parts:
        metrics[f"part_{part}"] = statistics.fmean(r.grade.parts[part] for r in rollouts)
    for rule in Rule:
        metrics[f"rule_{rule.value}"] = share(r.grade.extracted.rule is rule for r in rollouts)
    return metrics


def share(values: object) -> float:
    """The share of true ones."""
    listed = [bool(v) for v in values]  # type: ignore[attr-defined]
    return sum(listed) / len(listed) if listed else 0.0


class Clock:
    """Seconds by phase; phases may come more than once."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        here = time.perf_counter()
        self.laps[name] = round(self.laps.get(name, 0.0) + here - self.last, 6)
        self.last = here
