"""What a run computes and keeps as it grows. `make proofs ONLY=cost` measures seconds and memory."""

from __future__ import annotations

import gc
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from glasshouse.config.loading import load_config
from glasshouse.kernel import small_llama
from glasshouse.runs.rollout_log import read_rows
from glasshouse.training.display import Display
from glasshouse.training.run import TrainingRun

RUN: dict[str, Any] = {
    "generate.group_size": 4, "generate.max_tokens": 24, "evaluate.problems": 0, "diagnostics.kl_every": None,
    "checkpoints.save_above_reward": None, "checkpoints.save_best": False,
}  # fmt: skip


@pytest.mark.parametrize("groups", [2, 8, 32])
def test_the_kernel_computes_each_prompt_once_and_each_sampled_token_once(
    groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the work of a step is linear in its rows, whatever their number."""
    computed = {"prefill": 0, "learn": 0}

    class CountedUnit(small_llama.Unit):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            computed["learn" if len(self.targets) else "prefill"] += len(self.tokens)

    monkeypatch.setattr(small_llama, "Unit", CountedUnit)
    more = {"steps": 1, "data.groups_per_step": groups, "learn.skip_zero_advantage": False}
    config = load_config(overrides={**RUN, **more, "out": str(tmp_path)})
    TrainingRun(config).train()
    rows = list(read_rows(tmp_path, "train"))
    assert len(rows) == 4 * groups
    prompts = [next(own)["prompt_tokens"] for _, own in groupby(rows, lambda row: row["group"])]
    sampled = sum(len(row["tokens"]) - 1 for row in rows)  # the last ones are only targets
    assert computed["learn"] == sum(map(len, prompts)) + sampled
    assert computed["prefill"] <= sum(map(len, prompts))


class ObjectCounter(Display):
    """Counts what Python holds at the end of every twentieth step."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def step(self, row: dict[str, Any], groups: list[Any]) -> None:
        if row["step"] % 20 == 0:
            gc.collect()
            self.counts.append(sys.getallocatedblocks())


def test_a_run_keeps_no_object_of_its_rollouts(tmp_path: Path) -> None:
    """One object of each rollout would be 160 more in 20 steps of 8; caches that fill in these steps are fewer."""
    counter = ObjectCounter()
    more = {"steps": 60, "data.groups_per_step": 2, "out": str(tmp_path)}
    TrainingRun(load_config(overrides={**RUN, **more}), counter).train()
    *_, before, after = counter.counts
    assert after - before < 160, counter.counts
