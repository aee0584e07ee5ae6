"""Negative controls: rewards that say nothing about the completion. RL on them must not learn.

Both keep the reward that a rollout earned in its terms, under `earned`.
"""

from __future__ import annotations

from dataclasses import replace

from glasshouse import randomness
from glasshouse.rollout.collector import Group
from glasshouse.types import Rollout


def shuffle_rewards(groups: list[Group], seed: int, step: int) -> list[Group]:
    """Permute the step's rewards among all its rollouts."""
    rewards = [r.grade.reward for group in groups for r in group]
    randomness.stream("shuffle", seed, step).shuffle(rewards)
    permuted = iter(rewards)
    return [[_with_reward(r, next(permuted)) for r in group] for group in groups]


def random_rewards(groups: list[Group], seed: int, step: int) -> list[Group]:
    """Replace every reward by -1 or 1 at random, keyed by problem and sample."""
    return [
        [
            _with_reward(
                r,
                randomness.stream("coin", seed, step, r.problem.key, r.sample).choice((-1.0, 1.0)),
            )
            for r in group
        ]
        for group in groups
    ]


def _with_reward(rollout: Rollout, reward: float) -> Rollout:
    terms = {**rollout.grade.terms, "earned": rollout.grade.reward}
    return replace(rollout, grade=replace(rollout.grade, terms=terms, reward=reward))
