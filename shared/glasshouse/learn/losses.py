"""Every algorithm on one page: a loss is a pure function `LossInputs -> (loss, metrics)`.

    logprobs ──► ratio ──► objective per token ──► + KL ──► weighted sum ──► - entropy
                 to the    clipped, or a           to the   how much
                 sampler   weighted log-prob       start    each counts

An algorithm is three choices: over what the ratio is taken (a token, a sequence's mean, a
sequence's sum), what is done with it, and how much each token counts. To add one, write its
function beside the others and an entry in `ALGORITHMS`; the learner knows none of them by name.

What was removed from PPO: the value network (see advantages.py) and the separate "old" policy.
**Old is the sampler**: the policy version that drew the tokens, with the log-probabilities it
reported. The learner takes one update per batch, so a third policy between the two would equal one
of them. On fresh data the ratio is 1 up to rounding; on data one version old (`max_offpolicy_steps: 1`), or from an
engine that rounds differently, it is the importance weight that corrects for it.

Each loss returns its micro-batch's *contribution*: it divides by the rows or tokens of the whole
step, never by those it sees, so that contributions add up to the loss of the whole batch however it
is cut. Metrics are sums over this micro-batch's tokens (`tokens` counts them); the learner adds and
divides them. For a ratio over a sequence, a clip counts once for each of its tokens.

`make compare-trl` shows values and gradients equal to TRL 1.16's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from glasshouse.errors import ConfigError, nearest
from glasshouse.learn.advantages import Advantage, centred, leave_one_out, raw, standardised


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The coefficients of a loss. Each algorithm has its own defaults: `ALGORITHMS[name].settings`.

    Example: `replace(ALGORITHMS["dapo"].settings, kl=0.01)`
    """

    clip_low: float = 0.2
    """A ratio below 1 - clip_low no longer pushes a bad token further down."""
    clip_high: float = 0.2
    """A ratio above 1 + clip_high no longer pushes a good token further up."""
    importance_cap: float = 0.0
    """The largest importance weight; 0 is off. In losses that weigh log-probabilities (reinforce,
    cispo) off means unweighted: right only for fresh data. In clipped losses it bounds what
    clipping leaves unbounded, the ratio of a bad token (TRL's `delta`); off means unbounded."""
    kl: float = 0.0
    """Coefficient of the KL divergence to the starting policy."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high", "kl", "entropy"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 or more.")
        if self.clip_low > 1:
            raise ConfigError(f"clip_low is {self.clip_low}: a ratio cannot fall below 0, so ≤ 1.")
        if self.importance_cap != 0 and not self.importance_cap >= 1:
            raise ConfigError(
                f"importance_cap is {self.importance_cap}: use 0 for off, or 1 or more"
                " (a cap below 1 would shrink every update, fresh data's too)."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One micro-batch: R completions, right-padded to T tokens. Padding may hold anything."""

    logprobs: Tensor
    """(R, T) log-probability of each sampled token by the policy, with grad, at the sampling
    temperature."""
    sampler_logprobs: Tensor
    """(R, T) the same by the policy version that sampled them: the "old" policy."""
    mask: Tensor
    """(R, T) 1 or True where a completion token is real."""
    advantages: Tensor
    """(R,)"""
    reference_logprobs: Tensor | None = None
    """(R, T) the same by the starting policy; needed when `settings.kl` is not 0."""
    entropy: Tensor | None = None
    """(R, T) of the policy's next-token distribution, with grad; needed for the entropy bonus."""
    rows: int
    """Completions in the whole step's batch, skipped ones included."""
    tokens: int
    """Completion tokens in the whole step's batch, skipped ones included."""
    max_tokens: int
    """The generation limit."""
    settings: LossSettings

    def __post_init__(self) -> None:
        if self.settings.kl and self.reference_logprobs is None:
            raise ValueError("settings.kl is not 0, so reference_logprobs are needed.")
        if self.settings.entropy and self.entropy is None:
            raise ValueError("settings.entropy is not 0, so the entropy of each token is needed.")


Metrics = dict[str, Tensor]
Loss = Callable[[LossInputs], tuple[Tensor, Metrics]]


def skippable(settings: LossSettings) -> bool:
    """Whether rows of advantage 0 may be left out: then they add nothing, to value or gradient."""
    return settings.kl == 0 and settings.entropy == 0


# ── the algorithms ───────────────────────────────────────────────────────────────────────────────


def reinforce(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """-mean over rows of advantage x the row's mean log-probability; with a cap, truncated
    importance sampling: each token weighs min(ratio, cap), which passes no gradient."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_weighted(inputs, ratio), weight=_row_mean(inputs))


def cispo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """reinforce with every token counting alike: no token's gradient is ever clipped away."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_weighted(inputs, ratio), weight=1 / max(inputs.tokens, 1))


def grpo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """Clipped ratio of each token; every row counts alike, whatever its length."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=_row_mean(inputs))


def dr_grpo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """grpo divided by a constant: a long wrong answer is not let off for its length."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    weight = 1 / (max(inputs.rows, 1) * inputs.max_tokens)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=weight)


def dapo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """grpo with every token counting alike; its settings leave more room upwards (clip-higher)."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=1 / max(inputs.tokens, 1))


def gspo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """grpo with one ratio a sequence, its tokens' geometric mean: all are clipped or none."""
    ratio = (_log_ratio(inputs).sum(1, keepdim=True) / _lengths(inputs)).exp()  # (R, 1)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=_row_mean(inputs))


def rloo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """The sequence as one action: its ratio is the product of its tokens', its KL their sum."""
    ratio = _log_ratio(inputs).sum(1, keepdim=True).exp()  # (R, 1)
    objective, clips = _clipped(inputs, ratio)
    # Spread over the row's tokens, since _total sums over them.
    objective = objective / _lengths(inputs)
    return _total(inputs, ratio, objective, clips, weight=1 / max(inputs.rows, 1))


# ── what they share ──────────────────────────────────────────────────────────────────────────────


def _clipped(inputs: LossInputs, ratio: Tensor) -> tuple[Tensor, Metrics]:
    """PPO's pessimism: the worse of the ratio and the clipped ratio. (R, T) or (R, 1)"""
    settings, advantages = inputs.settings, inputs.advantages.unsqueeze(1)  # (R, 1)
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    clips = {
        "clip_low": (ratio < low) & (advantages < 0),
        "clip_high": (ratio > high) & (advantages > 0),
    }
    bounded = ratio.clamp(max=settings.importance_cap) if settings.importance_cap else ratio
    return -torch.minimum(bounded * advantages, ratio.clamp(low, high) * advantages), clips


def _weighted(inputs: LossInputs, ratio: Tensor) -> tuple[Tensor, Metrics]:
    """Log-probabilities times advantages times truncated importance weights. (R, T)"""
    advantages, cap = inputs.advantages.unsqueeze(1), inputs.settings.importance_cap
    weights = ratio.detach()
    clips = {"clip_high": (weights > (cap or math.inf)) & (advantages != 0)}
    weights = weights.clamp(max=cap) if cap else torch.ones_like(weights)
    return -weights * advantages * _real(inputs, inputs.logprobs), clips


def _total(
    inputs: LossInputs, ratio: Tensor, objective: Tensor, clips: Metrics, *, weight: Tensor | float
) -> tuple[Tensor, Metrics]:
    """Add KL and entropy, and sum what each token counts. `weight` is (R, 1) or one number."""
    mask = inputs.mask.to(inputs.logprobs.dtype)  # (R, T)
    gap = _log_ratio(inputs).detach().abs()
    sums = {"tokens": mask, "ratio": ratio.detach(), "gap": gap, **clips}
    if inputs.reference_logprobs is not None:
        # Schulman's k3: e^d - d - 1 for d = log(reference / policy); never negative, 0 where equal.
        distance = _real(inputs, inputs.reference_logprobs - inputs.logprobs)
        divergence = distance.exp() - distance - 1
        sums["kl"] = divergence.detach()
        if inputs.settings.kl:
            # Its own gradient is not the divergence's. Times the ratio it is, even where that is 1:
            # -d times the log-probability's (DeepSeek-V3.2; TRL's default).
            objective = objective + inputs.settings.kl * ratio * divergence
    loss = (objective * mask * weight).sum()
    if inputs.entropy is not None:
        entropy = _real(inputs, inputs.entropy)
        sums["entropy"] = entropy.detach()
        if inputs.settings.entropy:
            loss = loss - inputs.settings.entropy * entropy.sum() / max(inputs.tokens, 1)
    return loss, {name: (value * mask).sum() for name, value in sums.items()}


def _log_ratio(inputs: LossInputs) -> Tensor:
    """log(policy / sampler) of each token, 0 on padding. (R, T)"""
    return _real(inputs, inputs.logprobs - inputs.sampler_logprobs)


def _real(inputs: LossInputs, values: Tensor) -> Tensor:
    """The values, with 0 on padding even where padding is not finite. (R, T)"""
    return torch.where(inputs.mask.bool(), values, 0.0)


def _lengths(inputs: LossInputs) -> Tensor:
    """Tokens of each row, at least 1. (R, 1)"""
    return inputs.mask.to(inputs.logprobs.dtype).sum(1, keepdim=True).clamp(min=1)


def _row_mean(inputs: LossInputs) -> Tensor:
    """What a token counts when every row counts alike. (R, 1)"""
    return 1 / (max(inputs.rows, 1) * _lengths(inputs))


# ── the register ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """All that the rest of the system knows of an algorithm."""

    name: str
    description: str
    """One line for people."""
    advantage: Advantage
    loss: Loss
    settings: LossSettings = LossSettings()
    """Its defaults; the configuration overrides them one by one."""
    min_group: int = 2
    """Fewest completions per problem that give it a signal."""
    dynamic_sampling: bool = False
    """Groups of equal rewards are replaced by fresh ones until the batch is full."""


ALGORITHMS: dict[str, Algorithm] = {
    a.name: a
    for a in (
        Algorithm(
            name="reinforce",
            description="reward times the length-normalised log-probability; no baseline",
            advantage=raw,
            loss=reinforce,
            settings=LossSettings(importance_cap=2.0),
            min_group=1,
        ),
        Algorithm(
            name="rloo",
            description="leave-one-out baseline; the whole sequence is one action",
            advantage=leave_one_out,
            loss=rloo,
        ),
        Algorithm(
            name="grpo",
            description="group-standardised advantages, clipped token ratios, rows count alike",
            advantage=standardised,
            loss=grpo,
        ),
        Algorithm(
            name="dr_grpo",
            description="grpo without its biases: no division by deviation or by length",
            advantage=centred,
            loss=dr_grpo,
        ),
        Algorithm(
            name="dapo",
            description="grpo with clip-higher, tokens counting alike, and dynamic sampling",
            advantage=standardised,
            loss=dapo,
            settings=LossSettings(clip_high=0.28),
            dynamic_sampling=True,
        ),
        Algorithm(
            name="gspo",
            description="grpo with one ratio per sequence, clipped within the paper's 0.0004",
            advantage=standardised,
            loss=gspo,
            settings=LossSettings(clip_low=3e-4, clip_high=4e-4),
        ),
        Algorithm(
            name="cispo",
            description="truncated importance weights on log-probabilities, tokens counting alike",
            advantage=standardised,
            loss=cispo,
            settings=LossSettings(importance_cap=5.0),
        ),
    )
}

LOSSES: dict[str, Loss] = {name: algorithm.loss for name, algorithm in ALGORITHMS.items()}


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name, or a sentence with the nearest one."""
    if name not in ALGORITHMS:
        raise ConfigError(f'There is no algorithm "{name}".{nearest(name, ALGORITHMS)}')
    return ALGORITHMS[name]
