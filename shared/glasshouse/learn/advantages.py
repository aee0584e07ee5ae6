"""Advantages: rewards (G, K) in, how much better than expected each completion was (G, K) out.

A row is a group: K completions of one problem. Differs from PPO: no value network, the group is the
baseline. A group of equal rewards has advantage exactly 0.0 under every baseline
below (subtracting a rounded mean would leave about 1e-8, and 1e-8 / 1e-4 is not negligible), so the
learner can detect rows without a training signal by comparing with zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Advantage = Callable[[Tensor], Tensor]

EPSILON = 1e-4
"""Added to the standard deviation, as TRL adds it."""


def no_baseline(rewards: Tensor) -> Tensor:
    """The reward itself, without a baseline: textbook REINFORCE.

    Example: `[[1, 0, 0, 1]]` gives `[[1, 0, 0, 1]]`.
    """
    return _validate(rewards).clone()


def mean_baseline(rewards: Tensor) -> Tensor:
    """Reward minus the mean of the group (Dr. GRPO).

    Example: `[[1, 0, 0, 1]]` gives `[[0.5, -0.5, -0.5, 0.5]]`.
    """
    rewards = _validate(rewards)
    has_spread = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)  # (G, 1)
    return torch.where(has_spread, rewards - rewards.mean(1, keepdim=True), 0.0)


def group_normalized(rewards: Tensor) -> Tensor:
    """`mean_baseline`, divided by the sample standard deviation of the group, with K - 1 (GRPO).

    Example: `[[1, 0, 0, 1]]` gives `[[0.866, -0.866, -0.866, 0.866]]`.
    """
    advantages = mean_baseline(rewards)
    if rewards.shape[1] == 1:  # the deviation of one reward is undefined
        return advantages
    return advantages / (rewards.std(1, keepdim=True, correction=1) + EPSILON)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Reward minus the mean of the *other* completions of the group (RLOO).

    Computed as `mean_baseline` times K / (K - 1), which is the same.

    Example: `[[1, 0, 0, 1]]` gives `[[0.667, -0.667, -0.667, 0.667]]`.
    """
    advantages = mean_baseline(rewards)
    size = rewards.shape[1]
    return advantages * (size / max(size - 1, 1))


def _validate(rewards: Tensor) -> Tensor:
    if rewards.ndim != 2 or 0 in rewards.shape:
        shape = tuple(rewards.shape)
        raise ValueError(f"rewards must have the shape (groups, group size), not {shape}.")
    if not torch.isfinite(rewards).all():
        group, sample = (~torch.isfinite(rewards)).nonzero()[0].tolist()
        value = rewards[group, sample].item()
        raise ValueError(
            f"The reward of completion {sample} of group {group} is {value}; it must be finite."
        )
    return rewards
