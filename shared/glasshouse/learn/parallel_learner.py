"""A learner in several processes: each computes the gradients of every N-th unit of a step.

    round 1   rank 0: unit 0    rank 1: unit 1    all gather both gradients, add 0, then 1
    round 2   rank 0: unit 2    rank 1: unit 3    all gather both gradients, add 2, then 3

Gradients are added one unit after another, in the order in which one process adds them. The sum
therefore has the same bits for any number of processes. Every rank then takes the same update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glasshouse.errors import RunError
from glasshouse.learn.learner import BlockGradients, Learner
from glasshouse.learn.microbatches import TrainingSample


class ParallelLearner(Learner):
    """One of several learners that hold the same weights and take the same updates."""

    def _compute_gradients(
        self, samples: list[TrainingSample], rows: int, tokens: int
    ) -> Iterator[BlockGradients]:
        units, rank, world_size = self._plan_blocks(samples), dist.get_rank(), dist.get_world_size()
        for start in range(0, len(units), world_size):
            outcome: BlockGradients | None = None
            error_text = ""
            try:
                if start + rank < len(units):
                    outcome = self._differentiate_block(rows, tokens, units[start + rank])
            except (
                RunError
            ) as error:  # the other ranks must learn of it, or they would wait forever
                error_text = str(error)
            yield from self._exchange(outcome, error_text, len(units) - start)

    def _exchange(
        self, outcome: BlockGradients | None, error_text: str, remaining: int
    ) -> Iterator[BlockGradients]:
        """Yield a round's outcomes in order of rank; an error on one rank is raised on all."""
        world_size = dist.get_world_size()
        reports: list[Any] = [None] * world_size
        dist.all_gather_object(
            reports, (error_text, outcome and (outcome.loss, outcome.logprob_diffs, outcome.metric_sums))
        )  # fmt: skip
        for text, _ in reports:
            if text:
                raise RunError(text)
        flat = self._flatten(outcome)
        gathered = [torch.empty_like(flat) for _ in range(world_size)]
        dist.all_gather(gathered, flat)
        for (_, report), gradients in list(zip(reports, gathered, strict=True))[:remaining]:
            loss, differences, sums = report
            yield BlockGradients(loss, differences, sums, self._unflatten(gradients))

    def _flatten(self, outcome: BlockGradients | None) -> Tensor:
        """Concatenate all gradients; missing ones are zeros, which add nothing."""
        # on the CPU, where gloo sums; `grad +=` brings the sums back to the device of the parameters
        flat, start = torch.zeros(sum(p.numel() for p in self.parameters)), 0
        for parameter, gradient in zip(
            self.parameters, outcome.gradients if outcome else (), strict=False
        ):
            if gradient is not None:
                flat[start : start + parameter.numel()] = gradient.reshape(-1)
            start += parameter.numel()
        return flat

    def _unflatten(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([p.numel() for p in self.parameters])
        return [
            piece.view(parameter.shape).to(parameter.device)
            for piece, parameter in zip(pieces, self.parameters, strict=True)
        ]
