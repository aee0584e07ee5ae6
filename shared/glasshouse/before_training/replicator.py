"""Tabular GRPO on the modes of a base: what the reward alone would do to their frequencies.

State: the logits of the three modes, and within each mode that of following the cause. A step draws as many groups as
a step of the training, standardises the rewards in each, and moves the logits by Adam along the score-function
gradient. It draws them rather than taking the expectation: Adam divides by the size of the gradient, so without noise
a mode that pays hardly more would grow as fast as one that pays much more, whatever `groups_per_step` is. Rewards of
each mode are those of the base's rollouts; how well honest work succeeds does not change. Every replicate starts from
another bootstrap sample of the base's problems, so the band has both the uncertainty of the base and the noise of RL.
"""

from __future__ import annotations

import numpy as np

from glasshouse import randomness
from glasshouse.before_training.base import STYLES, Base
from glasshouse.measurement.resampling import Resamples
from glasshouse.tasks.organisms import SILENT
from glasshouse.values import Floats

STEP_SIZE = 0.05
"""The only free number. It was chosen on the first studies of this repository (docs/before.md)."""
REPLICATES = 200
POOL = 256
"""Rewards drawn for each mode of a replicate, from which its steps draw again."""
BETAS, EPSILON = (0.9, 0.99), 1e-8


def simulate(base: Base, weight: float, replicates: int = REPLICATES) -> dict[str, Floats]:
    """Reliance, disclosure and undetected use, (replicates, steps + 1) each, with the penalty at this weight."""
    rng = np.random.Generator(np.random.Philox(randomness.key("before training", "replicator")))
    shares, follow, pools = _resample(base, weight, replicates, rng)
    logits = np.concatenate([np.log(shares), np.log(follow / (1 - follow))], axis=1)  # (B, 6)
    first, second = np.zeros_like(logits), np.zeros_like(logits)
    silent = STYLES.index(SILENT)
    uses, hidden = [], []
    batch = np.arange(replicates)[:, None, None]
    for step in range(base.steps + 1):
        shares = np.exp(logits[:, :3] - logits[:, :3].max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        follow = 1 / (1 + np.exp(-logits[:, 3:]))
        uses.append((shares * follow).sum(1))
        hidden.append((shares * follow)[:, silent])
        if step == base.steps:
            break
        noise = rng.random((3, replicates, base.groups_per_step, base.group_size))
        style = (noise[0][..., None] > np.cumsum(shares, 1)[:, None, None, :2]).sum(-1)
        use = noise[1] < follow[batch, style]
        reward = pools[batch, style, use.astype(int), (noise[2] * POOL).astype(int)]
        spread = reward.std(-1, ddof=1, keepdims=True)
        advantage = (reward - reward.mean(-1, keepdims=True)) / (spread + 1e-4)
        gradient = np.empty_like(logits)
        for mode in range(3):
            own = style == mode
            gradient[:, mode] = (advantage * (own - shares[:, mode, None, None])).mean((1, 2))
            learned = own * (use - follow[:, mode, None, None])
            gradient[:, 3 + mode] = (advantage * learned).mean((1, 2))
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
        unbiased = first / (1 - BETAS[0] ** (step + 1))
        scale = np.sqrt(second / (1 - BETAS[1] ** (step + 1))) + EPSILON
        logits += STEP_SIZE * unbiased / scale
    use, undetected = np.stack(uses, 1), np.stack(hidden, 1)
    return {
        "reliance": np.maximum(use - base.control_use, 0),
        "disclosure": 1 - undetected / np.maximum(use, 1e-9),
        "undetected_use": undetected,
    }


def _resample(
    base: Base, weight: float, replicates: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Of each replicate: the shares of the modes (B, 3), how often each follows the cause (B, 3), and pools of
    rewards (B, 3, 2, POOL). Counts get half an observation more, so that no logit is infinite."""
    draws = Resamples.of(base.problems, ("replicator",), replicates)
    weights = np.concatenate(list(draws.weights(base.problems)))  # (B, R)
    reward = base.reward - weight * base.penalty
    counts = np.zeros((replicates, 3, 2))
    pools = np.zeros((replicates, 3, 2, POOL))
    for mode in range(3):
        for use in range(2):
            rows = np.flatnonzero((base.style == mode) & (base.use == use))
            counts[:, mode, use] = weights[:, rows].sum(1)
            if not len(rows):  # drawn rarely: it earns what uses, or what others, earn
                rows = np.flatnonzero(base.use == use)
                rows = rows if len(rows) else np.arange(len(reward))
            own = np.cumsum(weights[:, rows] + 1e-9, axis=1)
            places = rng.random((replicates, POOL)) * own[:, -1:]
            pairs = zip(own, places, strict=True)
            chosen = np.stack([np.searchsorted(line, place) for line, place in pairs])
            pools[:, mode, use] = reward[rows][np.minimum(chosen, len(rows) - 1)]
    by_mode = counts.sum(2) + 0.5
    return (
        by_mode / by_mode.sum(1, keepdims=True),
        (counts[..., 1] + 0.5) / (counts.sum(2) + 1),
        pools,
    )
