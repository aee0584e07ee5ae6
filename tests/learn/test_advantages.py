"""Advantages against values computed by hand and a second implementation."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glasshouse.learn.losses import (
    Advantage,
    group_normalized,
    leave_one_out,
    mean_baseline,
    no_baseline,
)

torch.set_num_threads(1)

BASELINES = [mean_baseline, group_normalized, leave_one_out]
ADVANTAGES = [no_baseline, *BASELINES]

groups = st.integers(2, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(-4, 4, width=16), min_size=size, max_size=size), min_size=1, max_size=4
    )
)


def test_values_computed_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 0.0, 0.0, 0.0]])
    # mean 1/2 and 3/4; sum of squares 1 and 27/4; sample deviations √(1/3) and √(9/4)
    assert no_baseline(rewards).tolist() == rewards.tolist()
    assert no_baseline(rewards) is not rewards
    assert mean_baseline(rewards).tolist() == [[0.5, -0.5, -0.5, 0.5], [2.25, -0.75, -0.75, -0.75]]
    a, b, c = 0.5 / (3**-0.5 + 1e-4), 2.25 / 1.5001, -0.75 / 1.5001
    torch.testing.assert_close(
        group_normalized(rewards), torch.tensor([[a, -a, -a, a], [b, c, c, c]])
    )
    d = 2 / 3  # others' means: 1/3 beside a 1, 2/3 beside a 0
    torch.testing.assert_close(
        leave_one_out(rewards), torch.tensor([[d, -d, -d, d], [3, -1, -1, -1]])
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
