"""Losses against TRL's frozen numbers, against written-out loops, and for what they promise.

`trl_fixture.json` holds one batch with TRL 1.16's own values and gradients; bench/compare_trl.py
makes it anew and compares live.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glasshouse.errors import ConfigError
from glasshouse.learn.losses import (
    ALGORITHMS,
    LOSSES,
    LossInputs,
    LossSettings,
    algorithm,
    skippable,
)

torch.set_num_threads(1)

FIXTURE: dict[str, Any] = json.loads((Path(__file__).parent / "trl_fixture.json").read_text())
NAMES = list(ALGORITHMS)
CLIPPED = ["grpo", "dr_grpo", "dapo", "gspo", "rloo"]
WEIGHTED = ["reinforce", "cispo"]

PLAIN = LossSettings(clip_low=0.2, clip_high=0.28, importance_cap=1.3)
FULL = replace(PLAIN, kl=0.3, entropy=0.05)


def batch(given: LossSettings, *, rows: int = 6, width: int = 7, seed: int = 0) -> LossInputs:
    """A ragged off-policy batch in double precision whose padding is poisoned."""
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
        reference_logprobs=reference if given.kl else None,
        entropy=normal(rows, width).abs().requires_grad_() if given.entropy else None,
        rows=rows,
        tokens=int(lengths.sum()),
        max_tokens=9,
        settings=given,
    )


def part(whole: LossInputs, keep: list[int] | slice) -> LossInputs:
    """Some rows as a micro-batch: the step's counts stay."""
    reference, entropy = whole.reference_logprobs, whole.entropy
    return replace(
        whole,
        logprobs=whole.logprobs[keep],
        sampler_logprobs=whole.sampler_logprobs[keep],
        mask=whole.mask[keep],
        advantages=whole.advantages[keep],
        reference_logprobs=None if reference is None else reference[keep],
        entropy=None if entropy is None else entropy[keep],
    )


def gradient(name: str, inputs: LossInputs) -> Tensor:
    (found,) = torch.autograd.grad(LOSSES[name](inputs)[0], [inputs.logprobs])
    return found


# ── TRL ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["label"])
def test_value_and_gradient_equal_trl(case: dict[str, Any]) -> None:
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
    (found,) = torch.autograd.grad(loss, [logprobs])
    expected = torch.tensor(case["gradient"])
    assert loss.item() == pytest.approx(case["loss"], rel=0, abs=1e-6)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: case["label"])
def test_advantages_equal_trl(case: dict[str, Any]) -> None:
    ours = ALGORITHMS[case["algorithm"]].advantage(torch.tensor(FIXTURE["rewards"])).flatten()
    torch.testing.assert_close(ours, torch.tensor(case["advantages"]), rtol=1e-5, atol=1e-6)


def test_the_fixture_covers_every_algorithm_trl_has_with_clipping_active() -> None:
    assert {case["algorithm"] for case in FIXTURE["cases"]} == set(NAMES) - {"reinforce"}
    for case in FIXTURE["cases"]:
        if case["label"] in CLIPPED:  # clipped tokens pass no gradient
            still = torch.tensor(case["gradient"])[torch.tensor(FIXTURE["mask"]) == 1] == 0
            idle = (torch.tensor(case["advantages"]) == 0).float().mean()
            assert still.float().mean() > idle


# ── the written-out loops ────────────────────────────────────────────────────────────────────────


def slow_loss(name: str, inputs: LossInputs, logprobs: Tensor) -> float:
    """Each algorithm as its paper writes it, one token at a time, for a whole batch.

    Importance weights that pass no gradient are taken at `inputs.logprobs`, so that a difference
    quotient over `logprobs` leaves them alone.
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
            elif advantage > 0:  # nothing more to gain beyond the clip
                terms.append(-advantage * min(ratios[t], 1 + s.clip_high, s.importance_cap or 1e9))
            else:
                bounded = min(ratios[t], s.importance_cap or 1e9)
                terms.append(-advantage * max(bounded, 1 - s.clip_low))
        kls = [0.0] * length
        if inputs.reference_logprobs is not None:
            for t in range(length):
                d = float(inputs.reference_logprobs[row, t]) - now[t]
                kls[t] = s.kl * ratios[t] * (math.exp(d) - 1 - d)

        if name in ("reinforce", "grpo", "gspo"):
            total += (sum(terms) + sum(kls)) / length / inputs.rows
        elif name in ("dapo", "cispo"):
            total += (sum(terms) + sum(kls)) / inputs.tokens
        elif name == "dr_grpo":
            total += (sum(terms) + sum(kls)) / (inputs.rows * inputs.max_tokens)
        elif name == "rloo":
            total += (terms[0] + sum(kls)) / inputs.rows
        else:
            raise AssertionError(f"{name} has no written-out formula: add one.")
        if inputs.entropy is not None:
            total -= s.entropy * sum(inputs.entropy[row, :length].tolist()) / inputs.tokens
    return total


SLOW_SETTINGS = [PLAIN, FULL, replace(FULL, importance_cap=0.0)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", SLOW_SETTINGS, ids=["plain", "kl+entropy", "no cap"])
def test_value_equals_the_written_out_formula(name: str, given: LossSettings) -> None:
    for seed in range(4):
        inputs = batch(given, seed=seed)
        expected = slow_loss(name, inputs, inputs.logprobs)
        assert LOSSES[name](inputs)[0].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", SLOW_SETTINGS, ids=["plain", "kl+entropy", "no cap"])
def test_gradient_equals_the_difference_quotient_of_the_formula(
    name: str, given: LossSettings
) -> None:
    inputs = batch(given)
    found = gradient(name, inputs)
    step = 1e-6
    for row, position in inputs.mask.nonzero().tolist():
        nudge = torch.zeros_like(found)
        nudge[row, position] = step
        with torch.no_grad():
            up = slow_loss(name, inputs, inputs.logprobs + nudge)
            down = slow_loss(name, inputs, inputs.logprobs - nudge)
        quotient = (up - down) / (2 * step)
        assert found[row, position].item() == pytest.approx(quotient, abs=1e-8)


def test_reinforce_is_the_seeds_formula_on_fresh_data() -> None:
    logprobs = torch.tensor([[-1.0, -3.0], [-0.5, 0.0]], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs,
        sampler_logprobs=logprobs.detach(),
        mask=torch.tensor([[1, 1], [1, 0]]),
        advantages=torch.tensor([1.0, 0.5]),
        rows=2,
        tokens=3,
        max_tokens=4,
        settings=ALGORITHMS["reinforce"].settings,
    )
    loss = LOSSES["reinforce"](inputs)[0]
    assert loss.item() == pytest.approx(-(1.0 * -2.0 + 0.5 * -0.5) / 2)
    assert gradient("reinforce", inputs).tolist() == [[-0.25, -0.25], [-0.25, 0.0]]


@pytest.mark.parametrize("name", ["reinforce", "grpo", "dr_grpo", "dapo", "cispo"])
def test_kl_gradient_on_fresh_data_is_the_reverse_kls(name: str) -> None:
    """Over all tokens of a vocabulary, weighted by the policy, it is d KL(policy ‖ start)."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    start = torch.tensor([0.0, 0.5, -0.2, 0.4], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((policy.exp() * (policy - start)).sum(), logits)
    logprobs = logits.log_softmax(0).unsqueeze(1)  # every token once: (4, 1)
    inputs = LossInputs(
        logprobs=logprobs,
        sampler_logprobs=logprobs.detach(),
        mask=torch.ones(4, 1),
        advantages=torch.zeros(4, dtype=torch.float64),
        reference_logprobs=start.unsqueeze(1),
        rows=4,
        tokens=4,
        max_tokens=1,
        settings=LossSettings(kl=1.0),
    )
    (by_token,) = torch.autograd.grad(LOSSES[name](inputs)[0], [inputs.logprobs], retain_graph=True)
    expected_weights = policy.detach().exp().unsqueeze(1) * 4  # the batch counted each once
    (found,) = torch.autograd.grad(logprobs, logits, by_token * expected_weights)
    torch.testing.assert_close(found, exact)


# ── what every loss promises ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, 5)), seed=st.integers(0, 99), full=st.booleans())
def test_micro_batches_add_up_to_the_whole(
    name: str, cuts: set[int], seed: int, full: bool
) -> None:
    inputs = batch(FULL if full else PLAIN, seed=seed)
    loss, metrics = LOSSES[name](inputs)
    edges = [0, *sorted(cuts), 6]
    parts = [part(inputs, slice(a, b)) for a, b in pairwise(edges)]
    outputs = [LOSSES[name](p) for p in parts]
    together = torch.stack([value for value, _ in outputs]).sum()
    torch.testing.assert_close(together, loss, rtol=1e-12, atol=1e-14)
    (by_parts,) = torch.autograd.grad(together, [inputs.logprobs])
    torch.testing.assert_close(by_parts, gradient(name, inputs), rtol=1e-12, atol=1e-14)
    for key, value in metrics.items():
        torch.testing.assert_close(sum(found[key] for _, found in outputs), value)


@pytest.mark.parametrize("name", NAMES)
def test_skipping_rows_without_advantage_changes_nothing(name: str) -> None:
    inputs = batch(PLAIN)
    assert skippable(PLAIN)
    kept = inputs.advantages.nonzero().flatten().tolist()
    assert len(kept) < inputs.rows
    loss, metrics = LOSSES[name](inputs)
    skipped, fewer = LOSSES[name](part(inputs, kept))
    assert skipped.item() == pytest.approx(loss.item(), rel=1e-14)
    (found,) = torch.autograd.grad(skipped, [inputs.logprobs])
    assert torch.equal(found, gradient(name, inputs))
    for key in {"clip_low", "clip_high"} & metrics.keys():  # and so are the counts of clips
        assert fewer[key] == metrics[key]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["kl", "entropy"])
def test_rows_without_advantage_count_once_there_is_kl_or_entropy(name: str, key: str) -> None:
    given = replace(PLAIN, **{key: 0.1})
    assert not skippable(given)
    inputs = batch(given)
    idle = (inputs.advantages == 0).nonzero().flatten().tolist()
    assert LOSSES[name](part(inputs, idle))[0].item() != 0


@pytest.mark.parametrize("name", NAMES)
def test_raising_a_good_token_lowers_the_loss_and_a_bad_one_raises_it(name: str) -> None:
    inputs = batch(ALGORITHMS[name].settings)
    fresh = replace(inputs, sampler_logprobs=inputs.logprobs.detach())
    found = gradient(name, fresh)
    sign = torch.sign(fresh.advantages).unsqueeze(1) * fresh.mask
    assert torch.equal(torch.sign(found), -sign)


@pytest.mark.parametrize("name", NAMES)
def test_poisoned_padding_and_empty_rows_do_no_harm(name: str) -> None:
    inputs = batch(FULL)
    mask = inputs.mask.clone()
    mask[0] = False
    emptied = replace(inputs, mask=mask)
    loss, metrics = LOSSES[name](emptied)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in metrics.values())
    found = gradient(name, emptied)
    assert torch.isfinite(found).all()
    assert (found[~mask] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_any_kind_of_mask_will_do(name: str, kind: torch.dtype) -> None:
    inputs = batch(FULL)
    other = replace(inputs, mask=inputs.mask.to(kind))
    assert torch.equal(LOSSES[name](inputs)[0], LOSSES[name](other)[0])


# ── clipping ─────────────────────────────────────────────────────────────────────────────────────


def one_token(ratio: float, advantage: float, given: LossSettings) -> LossInputs:
    logprobs = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    return LossInputs(
        logprobs=logprobs,
        sampler_logprobs=logprobs.detach() - math.log(ratio),
        mask=torch.ones(1, 1),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        rows=1,
        tokens=1,
        max_tokens=1,
        settings=given,
    )


@pytest.mark.parametrize("name", CLIPPED)
def test_clip_higher_leaves_more_room_up_than_down(name: str) -> None:
    given = LossSettings(clip_low=0.2, clip_high=0.28)
    moves = {
        (1.25, 1.0): True,  # beyond 1.2, within 1.28
        (1.30, 1.0): False,
        (0.78, -1.0): False,  # beyond 0.8
        (0.82, -1.0): True,
        (0.50, 1.0): True,  # pessimism: a good token that fell is always pulled back
        (2.00, -1.0): True,  # and a bad one that rose
    }
    for (ratio, advantage), expected in moves.items():
        inputs = one_token(ratio, advantage, given)
        assert bool(gradient(name, inputs).any()) is expected, (ratio, advantage)
        metrics = LOSSES[name](inputs)[1]
        clips = {"clip_low": metrics["clip_low"].item(), "clip_high": metrics["clip_high"].item()}
        assert clips == {
            "clip_low": float(not expected and advantage < 0),
            "clip_high": float(not expected and advantage > 0),
        }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ratio", [0.01, 100.0])
def test_a_token_is_counted_as_clipped_only_where_that_changed_something(
    name: str, ratio: float
) -> None:
    idle = one_token(ratio, 0.0, PLAIN)
    unweighted = one_token(ratio, 1.0, LossSettings(clip_high=1e3))
    for inputs in (idle, unweighted):
        metrics = LOSSES[name](inputs)[1]
        assert not any(metrics[key] for key in ("clip_low", "clip_high") if key in metrics)


def test_dapo_defaults_to_clip_higher_and_grpo_to_symmetry() -> None:
    dapo, grpo = ALGORITHMS["dapo"].settings, ALGORITHMS["grpo"].settings
    assert (dapo.clip_low, dapo.clip_high) == (0.2, 0.28)
    assert (grpo.clip_low, grpo.clip_high) == (0.2, 0.2)
    assert [name for name, found in ALGORITHMS.items() if found.dynamic_sampling] == ["dapo"]


@pytest.mark.parametrize("name", WEIGHTED)
def test_truncated_weights_correct_old_data_up_to_the_cap(name: str) -> None:
    given = LossSettings(importance_cap=2.0)
    weights = {0.5: 0.5, 1.0: 1.0, 1.5: 1.5, 3.0: 2.0}
    for ratio, weight in weights.items():
        inputs = one_token(ratio, 1.0, given)
        assert gradient(name, inputs).item() == pytest.approx(-weight)
        assert LOSSES[name](inputs)[1]["clip_high"].item() == float(ratio > 2)
        unweighted = replace(inputs, settings=LossSettings(importance_cap=0.0))
        assert gradient(name, unweighted).item() == -1.0


def test_one_clipped_sequence_is_clipped_whole_under_gspo_and_token_by_token_under_grpo() -> None:
    logprobs = torch.full((1, 2), -1.0, requires_grad=True)
    inputs = replace(
        batch(LossSettings()),
        logprobs=logprobs,
        sampler_logprobs=logprobs.detach() - torch.tensor([[0.6, 0.0]]),  # ratios 1.82 and 1
        mask=torch.ones(1, 2),
        advantages=torch.ones(1),
        rows=1,
        tokens=2,
    )
    assert gradient("grpo", inputs).tolist() == [[0.0, -0.5]]
    assert gradient("gspo", inputs).tolist() == [[0.0, 0.0]]
    assert LOSSES["grpo"](inputs)[1]["clip_high"] == 1
    assert LOSSES["gspo"](inputs)[1]["clip_high"] == 2  # both of its tokens


def test_metrics_are_sums_over_real_tokens() -> None:
    inputs = batch(FULL)
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
        "gap": log_ratio.abs().sum(),
        "kl": (distance.exp() - distance - 1).sum(),
        "entropy": inputs.entropy.detach()[real].sum(),
    }
    for key, value in expected.items():
        torch.testing.assert_close(metrics[key], value)


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match='Did you mean "dr_grpo"'):
        algorithm("drgrpo")
    assert algorithm("grpo") is ALGORITHMS["grpo"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"clip_low": 1.5}, "cannot fall below 0"),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"kl": math.nan}, "kl is nan"),
        ({"importance_cap": 0.2}, "0 for off, or 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LossSettings(**bad)


def test_a_missing_reference_or_entropy_is_named() -> None:
    with pytest.raises(ValueError, match="reference_logprobs are needed"):
        replace(batch(PLAIN), settings=LossSettings(kl=0.1))
    with pytest.raises(ValueError, match="entropy of each token is needed"):
        replace(batch(PLAIN), settings=LossSettings(entropy=0.1))
