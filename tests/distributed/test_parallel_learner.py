"""Several learners divide the gradient blocks of a step and end with the bits of one learner."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from glasshouse.config.schema import LearnConfig
from glasshouse.learn.learner import Learner
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.policy import Policy

pytest.importorskip("monarch")
from glasshouse.learn import parallel_learner


class ThreadedCollectives:
    """The part of torch.distributed that a learner uses, for ranks that are threads."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.local = world_size, threading.local()
        self.barrier, self.items = threading.Barrier(world_size), [Any] * world_size

    def get_rank(self) -> int:
        return int(self.local.rank)

    def get_world_size(self) -> int:
        return self.world_size

    def all_gather_object(self, results: list[Any], item: Any) -> None:
        self.items[self.get_rank()] = item
        self.barrier.wait(20)
        results[:] = self.items
        self.barrier.wait(20)

    def all_gather(self, results: list[torch.Tensor], tensor: torch.Tensor) -> None:
        gathered: list[Any] = [None] * self.world_size
        self.all_gather_object(gathered, tensor)
        for result, source in zip(results, gathered, strict=True):
            result.copy_(source)


def test_each_learner_differentiates_its_share_and_all_get_the_bits_of_one(
    tiny: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LearnConfig(gradient_blocks=2, microbatch_tokens=16, learning_rate=1e-2)
    samples = [
        TrainingSample(
            prompt=(5 + group, 9), tokens=(20 + row, 30), sampler_logprobs=(-3.0, -4.0),
            advantage=1.0 - row,
        )
        for group in range(4) for row in range(3)
    ]  # fmt: skip
    start = tiny("llama")
    policies = [replace(start, model=copy.deepcopy(start.model)) for _ in range(3)]
    differentiated: list[list[int]] = [[], [], []]

    def make(kind: type[Learner], index: int) -> Learner:
        learner = kind(policies[index], config, max_tokens=8, steps=3)
        original = learner.differentiate_block

        def spy(block: Any, size: Any) -> Any:
            differentiated[index].append(sum(map(len, block.microbatches)))
            return original(block, size)

        monkeypatch.setattr(learner, "differentiate_block", spy)
        return learner

    alone = make(Learner, 2)
    expected = [alone.update(samples) for _ in range(2)]
    collectives = ThreadedCollectives(2)
    monkeypatch.setattr(parallel_learner, "dist", collectives)
    metrics: list[list[dict[str, float]]] = [[], []]

    def run(rank: int) -> None:
        collectives.local.rank = rank
        learner = make(parallel_learner.ParallelLearner, rank)
        metrics[rank] = [learner.update(samples) for _ in range(2)]

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(60)

    assert sum(differentiated[0]) == sum(differentiated[1]) == sum(differentiated[2]) / 2
    assert metrics == [expected, expected]
    for policy in policies[:2]:
        for name, tensor in policy.weights().items():
            assert torch.equal(tensor, policies[2].weights()[name]), name
