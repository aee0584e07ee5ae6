"""How much better than expected each completion was: rewards (G, K) in, advantages (G, K) out.

A row is a group: K completions of one problem. What was removed from the textbook: a value network.
The group is the baseline. A group whose rewards are all equal has advantage exactly 0.0 in every
baseline below (subtracting a rounded mean would leave about 1e-8, and 1e-8 / 1e-4 is no longer
nothing), so the learner may find the rows without a signal by comparing with zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Advantage = Callable[[Tensor], Tensor]

EPSILON = 1e-4
"""Added to the standard deviation, as TRL adds it."""


def raw(rewards: Tensor) -> Tensor:
    """The reward itself, no baseline: textbook REINFORCE.

    Example: `[[1, 0, 0, 1]]` gives `[[1, 0, 0, 1]]`.
    """
    return _checked(rewards).clone()


def centred(rewards: Tensor) -> Tensor:
    """Reward minus the group's mean (Dr. GRPO).

    Example: `[[1, 0, 0, 1]]` gives `[[0.5, -0.5, -0.5, 0.5]]`.
    """
    rewards = _checked(rewards)
    varied = rewards.amax(1, keepdim=True) > rewards.amin(1, keepdim=True)  # (G, 1)
    return torch.where(varied, rewards - rewards.mean(1, keepdim=True), 0.0)


def standardised(rewards: Tensor) -> Tensor:
    """Centred, over the group's sample standard deviation, K - 1 below the line (GRPO).

    Example: `[[1, 0, 0, 1]]` gives `[[0.866, -0.866, -0.866, 0.866]]`.
    """
    advantages = centred(rewards)
    if rewards.shape[1] == 1:  # no deviation from oneself
        return advantages
    return advantages / (rewards.std(1, keepdim=True, correction=1) + EPSILON)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Reward minus the mean of the *other* completions of the group (RLOO).

    The same as `centred` times K / (K - 1), which is how it is computed.

    Example: `[[1, 0, 0, 1]]` gives `[[0.667, -0.667, -0.667, 0.667]]`.
    """
    advantages = centred(rewards)
    size = rewards.shape[1]
    return advantages * (size / max(size - 1, 1))


ADVANTAGES: dict[str, Advantage] = {
    "raw": raw,
    "centred": centred,
    "standardised": standardised,
    "leave_one_out": leave_one_out,
}


def _checked(rewards: Tensor) -> Tensor:
    if rewards.ndim != 2 or 0 in rewards.shape:
        shape = tuple(rewards.shape)
        raise ValueError(f"Rewards come as (groups, completions of a group), not as {shape}.")
    if not torch.isfinite(rewards).all():
        group, sample = (~torch.isfinite(rewards)).nonzero()[0].tolist()
        value = rewards[group, sample].item()
        raise ValueError(
            f"The reward of completion {sample} of group {group} is {value}: it must be finite."
        )
    return rewards
