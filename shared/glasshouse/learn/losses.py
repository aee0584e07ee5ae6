"""Every algorithm on one page: advantages are a pure function of rewards (G, K), a loss one of `LossInputs`.

    logprobs ──► ratio ──► objective per token ──► + KL ──► weighted sum ──► - entropy
                 to the    clipped, or a           to the   how much
                 sampler   weighted log-prob       start    each counts

An algorithm is three choices: the level of the ratio (a token, the mean of a sequence, the sum of a
sequence), whether it is clipped or truncated, and the weight of each token. To add one, write its
function under `@algorithm(…)`, here or in a module that `imports` names; the learner knows none by name.

Differs from PPO: no value network, the group is the baseline; and no policy besides these two. **Old is the
sampler**, also over several epochs: the policy version that sampled the tokens, with the
log-probabilities it reported. On fresh data the ratio is 1 up to rounding. After an update of the
same batch (`epochs_per_batch`), on data one version old (`max_offpolicy_steps: 1`) and from an engine
that rounds differently, it is the importance weight that corrects for the difference.

Each loss returns the *contribution* of its microbatch: it divides by the rows or tokens of the whole
step, never by those of the microbatch, so that contributions add up to the loss of the whole batch
however it is split. Metrics are sums over the tokens of the microbatch (`tokens` counts them); the
learner adds and divides them. For a ratio over a sequence, a clip counts once per token.

`make proofs ONLY=losses` shows that values and gradients equal those of TRL 1.16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glasshouse.errors import ConfigError
from glasshouse.registry import Registry

if TYPE_CHECKING:  # a configuration is checked without torch
    from torch import Tensor

Advantage = Callable[["Tensor"], "Tensor"]
"""Rewards (G, K) in, how much better than expected each completion was (G, K) out. A row is a group: K completions of
one problem. A group of equal rewards has advantage exactly 0.0 under every baseline below (subtracting a rounded mean
would leave about 1e-8, and 1e-8 / 1e-4 is not negligible), so the learner finds rows without a signal by comparing
with zero."""
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
    return (rewards - rewards.mean(1, keepdim=True)).where(has_spread, 0.0)


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
    if not rewards.isfinite().all():
        group, sample = (~rewards.isfinite()).nonzero()[0].tolist()
        value = rewards[group, sample].item()
        raise ValueError(
            f"The reward of completion {sample} of group {group} is {value}; it must be finite."
        )
    return rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The coefficients of a loss. Each algorithm has its own defaults."""

    clip_low: float = 0.2
    """Below a ratio of 1 - clip_low, a token of negative advantage gets no gradient."""
    clip_high: float = 0.2
    """Above a ratio of 1 + clip_high, a token of positive advantage gets no gradient."""
    importance_cap: float = 0.0
    """The largest importance weight; 0 is off. In losses that weight log-probabilities (reinforce,
    cispo), off means unweighted: correct only for fresh data. In clipped losses it bounds what
    clipping leaves unbounded, the ratio of a token of negative advantage (TRL's `delta`); off means
    unbounded."""
    kl_coef: float = 0.0
    """Coefficient of the KL divergence to the starting policy."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high", "kl_coef", "entropy_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"learn.{name} is {getattr(self, name)}; it must be 0 or more.")
        if self.clip_low > 1:
            raise ConfigError(f"learn.clip_low is {self.clip_low}; it must be at most 1.")
        if self.importance_cap != 0 and not self.importance_cap >= 1:
            raise ConfigError(
                f"learn.importance_cap is {self.importance_cap}; use 0 for off, or 1 or more"
                " (a cap below 1 would shrink every update, even on fresh data)."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One microbatch: R completions, right-padded to T tokens. Padding may hold any value."""

    logprobs: Tensor
    """(R, T) log-probability of each sampled token under the policy, with grad, at the sampling
    temperature."""
    sampler_logprobs: Tensor
    """(R, T) the same under the policy version that sampled them: the "old" policy."""
    mask: Tensor
    """(R, T) 1 or True on completion tokens, 0 or False on padding."""
    advantages: Tensor
    """(R,)"""
    reference_logprobs: Tensor | None = None
    """(R, T) the same under the starting policy; required if `settings.kl_coef` is not 0."""
    entropy: Tensor | None = None
    """(R, T) of the policy's next-token distribution, with grad; required for the entropy bonus."""
    rows: int
    """Completions in the whole step's batch, skipped ones included."""
    tokens: int
    """Completion tokens in the whole step's batch, skipped ones included."""
    max_tokens: int
    """The generation limit."""
    settings: LossSettings
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """(R, T) each, 0 on padding: the algorithm's own inputs (`Algorithm.inputs`), from `TrainingSample.extra`."""

    def __post_init__(self) -> None:
        if self.settings.kl_coef and self.reference_logprobs is None:
            raise ValueError("settings.kl_coef is not 0, so reference_logprobs are required.")
        if self.settings.entropy_coef and self.entropy is None:
            raise ValueError("settings.entropy_coef is not 0, so entropy is required.")


Metrics = dict[str, "Tensor"]
Loss = Callable[[LossInputs], "tuple[Tensor, Metrics]"]


def can_skip_zero_advantage(settings: LossSettings) -> bool:
    """Whether rows of advantage 0 may be skipped: they change neither value nor gradient."""
    return settings.kl_coef == 0 and settings.entropy_coef == 0


# ── what an algorithm is ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What the rest of the package knows about an algorithm."""

    name: str
    description: str
    """One line for `--help` and reports."""
    advantage: Advantage
    """Rewards of a group to advantages."""
    loss: Loss
    settings: LossSettings = LossSettings()
    """Its defaults; the configuration overrides them individually."""
    min_group: int = 2
    """The smallest group size that gives a training signal."""
    dynamic_sampling: bool = False
    """Groups of equal rewards are replaced by new ones until the batch is full."""
    inputs: tuple[str, ...] = ()
    """Names of the numbers per token that the loss reads from `LossInputs.extra`; every sample must have them."""


algorithm: Registry[Loss] = Registry("algorithm", "algorithms", key="learn.algorithm")
"""Losses by name. The arguments of the decorator are the other fields of `Algorithm`."""


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that name; an unknown name is an error that suggests the nearest.

    Example: `replace(get_algorithm("dapo").settings, kl_coef=0.01)`
    """
    loss = algorithm.get(name)
    return Algorithm(name=name, loss=loss, **algorithm.facts[name])


# ── the algorithms ───────────────────────────────────────────────────────────────────────────────


@algorithm(
    "reinforce",
    description="reward times the length-normalised log-probability; no baseline",
    advantage=no_baseline,
    settings=LossSettings(importance_cap=2.0),
    min_group=1,
)
def reinforce(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """-mean over rows of advantage × mean log-probability of the row; with a cap, truncated importance
    sampling: each token is weighted by min(ratio, cap), which passes no gradient."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_weighted(inputs, ratio), weight=_row_mean(inputs))


@algorithm(
    "cispo",
    description="truncated importance weights on log-probabilities, equal weight per token",
    advantage=group_normalized,
    settings=LossSettings(importance_cap=5.0),
)
def cispo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """reinforce with equal weight per token: no gradient is ever clipped away."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_weighted(inputs, ratio), weight=1 / max(inputs.tokens, 1))


@algorithm(
    "grpo",
    description="group-standardised advantages, clipped token ratios, equal weight per row",
    advantage=group_normalized,
)
def grpo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """Clipped ratio of each token; equal weight per row, whatever its length."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=_row_mean(inputs))


@algorithm(
    "dr_grpo",
    description="grpo without its biases: no division by deviation or by length",
    advantage=mean_baseline,
)
def dr_grpo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """grpo divided by a constant: the penalty of a wrong answer does not shrink with its length."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    weight = 1 / (max(inputs.rows, 1) * inputs.max_tokens)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=weight)


@algorithm(
    "dapo",
    description="grpo with clip-higher, equal weight per token, and dynamic sampling",
    advantage=group_normalized,
    settings=LossSettings(clip_high=0.28),
    dynamic_sampling=True,
)
def dapo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """grpo with equal weight per token; its defaults clip higher above 1 than below (clip-higher)."""
    ratio = _log_ratio(inputs).exp()  # (R, T)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=1 / max(inputs.tokens, 1))


@algorithm(
    "gspo",
    description="grpo with one ratio per sequence, clipped within the paper's 0.0004",
    advantage=group_normalized,
    settings=LossSettings(clip_low=3e-4, clip_high=4e-4),
)
def gspo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """grpo with one ratio per sequence, the geometric mean over its tokens: all are clipped or none."""
    ratio = (_log_ratio(inputs).sum(1, keepdim=True) / _lengths(inputs)).exp()  # (R, 1)
    return _total(inputs, ratio, *_clipped(inputs, ratio), weight=_row_mean(inputs))


@algorithm(
    "rloo",
    description="leave-one-out baseline; the whole sequence is one action",
    advantage=leave_one_out,
)
def rloo(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """The sequence as one action: its ratio is the product over its tokens, its KL their sum."""
    ratio = _log_ratio(inputs).sum(1, keepdim=True).exp()  # (R, 1)
    objective, clips = _clipped(inputs, ratio)
    # Divided over the tokens of the row, since _total sums over them.
    objective = objective / _lengths(inputs)
    return _total(inputs, ratio, objective, clips, weight=1 / max(inputs.rows, 1))


# ── shared parts ─────────────────────────────────────────────────────────────────────────────────


def _clipped(inputs: LossInputs, ratio: Tensor) -> tuple[Tensor, Metrics]:
    """PPO's objective: the lower of the ratio and the clipped ratio. (R, T) or (R, 1)"""
    settings, advantages = inputs.settings, inputs.advantages.unsqueeze(1)  # (R, 1)
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    clips = {
        "clip_low": (ratio < low) & (advantages < 0),
        "clip_high": (ratio > high) & (advantages > 0),
    }
    bounded = ratio.clamp(max=settings.importance_cap) if settings.importance_cap else ratio
    return -(bounded * advantages).minimum(ratio.clamp(low, high) * advantages), clips


def _weighted(inputs: LossInputs, ratio: Tensor) -> tuple[Tensor, Metrics]:
    """Log-probabilities times advantages times truncated importance weights. (R, T)"""
    advantages, cap = inputs.advantages.unsqueeze(1), inputs.settings.importance_cap
    weights = ratio.detach()
    clips = {"clip_high": (weights > (cap or math.inf)) & (advantages != 0)}
    weights = weights.clamp(max=cap) if cap else weights.new_ones(weights.shape)
    return -weights * advantages * _zero_padding(inputs, inputs.logprobs), clips


def _total(
    inputs: LossInputs, ratio: Tensor, objective: Tensor, clips: Metrics, *, weight: Tensor | float
) -> tuple[Tensor, Metrics]:
    """Adds KL and entropy and sums over weighted tokens. `weight` is (R, 1) or one number."""
    mask = inputs.mask.to(inputs.logprobs.dtype)  # (R, T)
    logprob_diff = _log_ratio(inputs).detach().abs()
    sums = {"tokens": mask, "ratio": ratio.detach(), "logprob_diff": logprob_diff, **clips}
    if inputs.reference_logprobs is not None:
        # Schulman's k3: e^d - d - 1 for d = log(reference / policy); never negative, 0 where equal.
        log_ratio = _zero_padding(inputs, inputs.reference_logprobs - inputs.logprobs)
        divergence = log_ratio.exp() - log_ratio - 1
        sums["kl"] = divergence.detach()
        if inputs.settings.kl_coef:
            # The gradient of k3 is not that of the divergence. Multiplied by the ratio it is, even
            # where that is 1: -d times the gradient of the log-probability (DeepSeek-V3.2; TRL's
            # default).
            objective = objective + inputs.settings.kl_coef * ratio * divergence
    loss = (objective * mask * weight).sum()
    if inputs.entropy is not None:
        entropy = _zero_padding(inputs, inputs.entropy)
        sums["entropy"] = entropy.detach()
        if inputs.settings.entropy_coef:
            loss = loss - inputs.settings.entropy_coef * entropy.sum() / max(inputs.tokens, 1)
    return loss, {name: (value * mask).sum() for name, value in sums.items()}


def _log_ratio(inputs: LossInputs) -> Tensor:
    """log(policy / sampler) of each token, 0 on padding. (R, T)"""
    return _zero_padding(inputs, inputs.logprobs - inputs.sampler_logprobs)


def _zero_padding(inputs: LossInputs, values: Tensor) -> Tensor:
    """The values, with 0 on padding even where padding is not finite. (R, T)"""
    return values.where(inputs.mask.bool(), 0.0)


def _lengths(inputs: LossInputs) -> Tensor:
    """Tokens of each row, at least 1. (R, 1)"""
    return inputs.mask.to(inputs.logprobs.dtype).sum(1, keepdim=True).clamp(min=1)


def _row_mean(inputs: LossInputs) -> Tensor:
    """The weight of a token if every row has equal weight. (R, 1)"""
    return 1 / (max(inputs.rows, 1) * _lengths(inputs))
