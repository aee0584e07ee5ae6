"""Losses against TRL's frozen numbers, against plain loops, and their guarantees.

`trl_fixture.json` holds one batch with values and gradients of TRL 1.16; bench/compare_trl.py writes
it and compares live.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from glasshouse.errors import ConfigError
from glasshouse.learn.losses import (
    Advantage,
    LossInputs,
    LossSettings,
    algorithm,
    get_algorithm,
    group_normalized,
    leave_one_out,
    mean_baseline,
    no_baseline,
)

FIXTURE: dict[str, Any] = json.loads((Path(__file__).parent / "trl_fixture.json").read_text())
NAMES = list(algorithm)
LOSSES = {name: get_algorithm(name).loss for name in algorithm}
WEIGHTED = ["reinforce", "cispo"]

PLAIN = LossSettings(clip_low=0.2, clip_high=0.28, importance_cap=1.3)
FULL = replace(PLAIN, kl_coef=0.3, entropy_coef=0.05)


def make_inputs(
    loss_settings: LossSettings, *, rows: int = 6, width: int = 7, seed: int = 0
) -> LossInputs:
    """A ragged off-policy batch in double precision with NaN and infinity on its padding."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    lengths = torch.tensor([1 + (3 * i + 2) % width for i in range(rows)])
    mask = torch.arange(width).unsqueeze(0) < lengths.unsqueeze(1)
    logprobs = -normal(rows, width).abs() - 0.1
    sampler = (logprobs + 0.25 * normal(rows, width)).masked_fill(~mask, math.nan)
    reference = (logprobs + 0.5 * normal(rows, width)).masked_fill(~mask, math.inf)
    advantages = normal(rows)
    advantages[1::3] = 0.0
    return LossInputs(
        logprobs=logprobs.requires_grad_(),
        sampler_logprobs=sampler,
        mask=mask,
        advantages=advantages,
        reference_logprobs=reference if loss_settings.kl_coef else None,
        entropy=normal(rows, width).abs().requires_grad_() if loss_settings.entropy_coef else None,
        rows=rows,
        tokens=int(lengths.sum()),
        max_tokens=9,
        settings=loss_settings,
    )


def gradient(name: str, inputs: LossInputs) -> Tensor:
    (result,) = torch.autograd.grad(LOSSES[name](inputs)[0], [inputs.logprobs])
    return result


# ── TRL ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["label"])
def test_value_gradient_and_advantages_equal_trl(case: dict[str, Any]) -> None:
    logprobs = torch.tensor(FIXTURE["logprobs"]).requires_grad_()
    mask = torch.tensor(FIXTURE["mask"])
    inputs = LossInputs(
        logprobs=logprobs,
        sampler_logprobs=torch.tensor(case["old"]),
        mask=mask,
        advantages=torch.tensor(case["advantages"]),
        reference_logprobs=torch.tensor(FIXTURE["reference"]),
        entropy=torch.tensor(FIXTURE["entropy"]),
        rows=mask.shape[0],
        tokens=int(mask.sum()),
        max_tokens=FIXTURE["max_tokens"],
        settings=LossSettings(**case["settings"]),
    )
    loss, _ = LOSSES[case["algorithm"]](inputs)
    (result,) = torch.autograd.grad(loss, [logprobs])
    expected = torch.tensor(case["gradient"])
    assert loss.item() == pytest.approx(case["loss"], rel=0, abs=1e-6)
    assert (result - expected).abs().max() <= 1e-5 * expected.abs().max()
    ours = get_algorithm(case["algorithm"]).advantage(torch.tensor(FIXTURE["rewards"])).flatten()
    torch.testing.assert_close(ours, torch.tensor(case["advantages"]), rtol=1e-5, atol=1e-6)


# ── plain loops ──────────────────────────────────────────────────────────────────────────────────


def plain_loss(name: str, inputs: LossInputs, logprobs: Tensor) -> float:
    """Each algorithm as in its paper, one token at a time, for a whole batch.

    Importance weights that pass no gradient are taken at `inputs.logprobs`, so that a difference
    quotient over `logprobs` does not change them.
    """
    s = inputs.settings
    total = 0.0
    for row in range(inputs.rows):
        length = int(inputs.mask[row].sum())
        advantage = float(inputs.advantages[row])
        now = logprobs[row, :length].tolist()
        held = inputs.logprobs[row, :length].tolist()
        old = inputs.sampler_logprobs[row, :length].tolist()
        logs = [a - b for a, b in zip(now, old, strict=True)]
        if name == "gspo":
            ratios = [math.exp(sum(logs) / length)] * length
        elif name == "rloo":
            ratios = [math.exp(sum(logs))] * length
        else:
            ratios = [math.exp(x) for x in logs]

        terms = []
        for t in range(length):
            if name in WEIGHTED:
                weight = math.exp(held[t] - old[t])
                weight = min(weight, s.importance_cap) if s.importance_cap else 1.0
                terms.append(-weight * advantage * now[t])
            elif advantage > 0:  # no gain beyond the clip
                terms.append(-advantage * min(ratios[t], 1 + s.clip_high, s.importance_cap or 1e9))
            else:
                bounded = min(ratios[t], s.importance_cap or 1e9)
                terms.append(-advantage * max(bounded, 1 - s.clip_low))
        kls = [0.0] * length
        if inputs.reference_logprobs is not None:
            for t in range(length):
                d = float(inputs.reference_logprobs[row, t]) - now[t]
                kls[t] = s.kl_coef * ratios[t] * (math.exp(d) - 1 - d)

        if name in ("reinforce", "grpo", "gspo"):
            total += (sum(terms) + sum(kls)) / length / inputs.rows
        elif name in ("dapo", "cispo"):
            total += (sum(terms) + sum(kls)) / inputs.tokens
        elif name == "dr_grpo":
            total += (sum(terms) + sum(kls)) / (inputs.rows * inputs.max_tokens)
        elif name == "rloo":
            total += (terms[0] + sum(kls)) / inputs.rows
        else:
            raise AssertionError(f"{name} has no plain formula: add one.")
        if inputs.entropy is not None:
            total -= s.entropy_coef * sum(inputs.entropy[row, :length].tolist()) / inputs.tokens
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "loss_settings",
    [PLAIN, FULL, replace(FULL, importance_cap=0.0)],
    ids=["plain", "kl+entropy", "no cap"],
)
def test_value_and_gradient_are_those_of_the_plain_formula(
    name: str, loss_settings: LossSettings
) -> None:
    for seed in range(4):
        inputs = make_inputs(loss_settings, seed=seed)
        expected = plain_loss(name, inputs, inputs.logprobs)
        assert LOSSES[name](inputs)[0].item() == pytest.approx(expected, rel=1e-12)
    result, step = gradient(name, inputs), 1e-6
    for row, position in inputs.mask.nonzero().tolist():
        nudge = torch.zeros_like(result)
        nudge[row, position] = step
        with torch.no_grad():
            up = plain_loss(name, inputs, inputs.logprobs + nudge)
            down = plain_loss(name, inputs, inputs.logprobs - nudge)
        assert result[row, position].item() == pytest.approx((up - down) / (2 * step), abs=1e-8)


# ── guarantees of every loss ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_non_finite_padding_and_empty_rows_have_no_effect(name: str) -> None:
    inputs = make_inputs(FULL)
    mask = inputs.mask.clone()
    mask[0] = False
    emptied = replace(inputs, mask=mask)
    loss, metrics = LOSSES[name](emptied)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in metrics.values())
    result = gradient(name, emptied)
    assert torch.isfinite(result).all()
    assert (result[~mask] == 0).all()


# ── clipping ─────────────────────────────────────────────────────────────────────────────────────


def one_token(ratio: float, advantage: float, loss_settings: LossSettings) -> LossInputs:
    logprobs = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    return LossInputs(
        logprobs=logprobs,
        sampler_logprobs=logprobs.detach() - math.log(ratio),
        mask=torch.ones(1, 1),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        rows=1,
        tokens=1,
        max_tokens=1,
        settings=loss_settings,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ratio", [0.01, 100.0])
def test_token_is_counted_as_clipped_only_if_clipping_changed_something(
    name: str, ratio: float
) -> None:
    idle = one_token(ratio, 0.0, PLAIN)
    unweighted = one_token(ratio, 1.0, LossSettings(clip_high=1e3))
    for inputs in (idle, unweighted):
        metrics = LOSSES[name](inputs)[1]
        assert not any(metrics[key] for key in ("clip_low", "clip_high") if key in metrics)


def test_metrics_are_sums_over_real_tokens() -> None:
    inputs = make_inputs(FULL)
    metrics = LOSSES["grpo"](inputs)[1]
    assert not any(value.requires_grad for value in metrics.values())
    real = inputs.mask
    log_ratio = (inputs.logprobs - inputs.sampler_logprobs).detach()[real]
    assert inputs.reference_logprobs is not None
    assert inputs.entropy is not None
    distance = (inputs.reference_logprobs - inputs.logprobs).detach()[real]
    expected = {
        "tokens": real.sum().double(),
        "ratio": log_ratio.exp().sum(),
        "logprob_diff": log_ratio.abs().sum(),
        "kl": (distance.exp() - distance - 1).sum(),
        "entropy": inputs.entropy.detach()[real].sum(),
    }
    for key, value in expected.items():
        torch.testing.assert_close(metrics[key], value)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_unknown_algorithm_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match='"dr_grpo"'):
        get_algorithm("drgrpo")
    assert get_algorithm("grpo").loss is algorithm.get("grpo")


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"clip_low": 1.5}, "learn.clip_low is 1.5"),
        ({"clip_high": -0.1}, "learn.clip_high is -0.1"),
        ({"kl_coef": math.nan}, "learn.kl_coef is nan"),
        ({"importance_cap": 0.2}, "learn.importance_cap is 0.2"),
    ],
)
def test_invalid_settings_are_named(invalid: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossSettings(**invalid)


def test_missing_reference_or_entropy_is_named() -> None:
    with pytest.raises(ValueError, match="reference_logprobs"):
        replace(make_inputs(PLAIN), settings=LossSettings(kl_coef=0.1))
    with pytest.raises(ValueError, match="entropy"):
        replace(make_inputs(PLAIN), settings=LossSettings(entropy_coef=0.1))


BASELINES = [mean_baseline, group_normalized, leave_one_out]
ADVANTAGES = [no_baseline, *BASELINES]

groups = st.integers(2, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(-4, 4, width=16), min_size=size, max_size=size), min_size=1, max_size=4
    )
)


@given(groups)
def test_advantages_equal_plain_loops(rewards: list[list[float]]) -> None:
    tensor = torch.tensor(rewards, dtype=torch.float64)
    for i, group in enumerate(rewards):
        mean, deviation = statistics.fmean(group), statistics.stdev(group)
        for j, reward in enumerate(group):
            others = group[:j] + group[j + 1 :]
            alone = leave_one_out(tensor)[i, j].item()
            assert alone == pytest.approx(reward - statistics.fmean(others), abs=1e-9)
            scaled = group_normalized(tensor)[i, j].item()
            assert scaled == pytest.approx((reward - mean) / (deviation + 1e-4), abs=1e-8)


@pytest.mark.parametrize("advantage", BASELINES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 16])
def test_group_of_equal_rewards_has_advantage_exactly_zero(advantage: Advantage, size: int) -> None:
    rewards = torch.tensor([0.1, 1 / 3, 0.7, 1.0, -2.3]).unsqueeze(1).expand(5, size)
    assert (advantage(rewards) == 0.0).all()


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_non_finite_reward_is_named(advantage: Advantage) -> None:
    with pytest.raises(ValueError, match=r"completion 1 of group 2.*nan"):
        advantage(torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, float("nan")]]))
    with pytest.raises(ValueError, match=r"groups.*\(4,\)"):
        advantage(torch.zeros(4))
