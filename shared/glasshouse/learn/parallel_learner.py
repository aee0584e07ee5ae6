"""A learner in several processes: each computes the gradients of every N-th block of a step.

    round 1   rank 0: block 0    rank 1: block 1    all gather both gradients, add 0, then 1
    round 2   rank 0: block 2    rank 1: block 3    all gather both gradients, add 2, then 3

Gradients are added one block after another, in the order in which one process adds them. The sum
therefore has the same bits for any number of processes. Every rank then takes the same update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glasshouse.errors import RunError
from glasshouse.learn.learner import GradientBlock, Gradients, Learner, StepSize


class ParallelLearner(Learner):
    """One of several learners that hold the same weights and take the same updates."""

    def differentiate_blocks(
        self, blocks: Sequence[GradientBlock], size: StepSize
    ) -> Iterator[Gradients]:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        share = super().differentiate_blocks(blocks[rank::world_size], size)
        for start in range(0, len(blocks), world_size):
            own, error_text = Gradients([None] * len(self.gradient_shapes)), ""
            try:
                own = next(share, own)
            except RunError as error:  # the other ranks must learn of it: they would wait forever
                error_text = str(error)
            yield from self._exchange(own, error_text, len(blocks) - start)

    def _exchange(self, own: Gradients, error_text: str, remaining: int) -> Iterator[Gradients]:
        """Yield a round's gradients in order of rank; an error on one rank is raised on all."""
        reports: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reports, (error_text, own.loss, own.logprob_diffs, own.metric_sums))
        for text, *_ in reports:
            if text:
                raise RunError(text)
        flat = self._flatten(own.values)
        gathered = [torch.empty_like(flat) for _ in reports]
        dist.all_gather(gathered, flat)
        for (_, *report), gradients in list(zip(reports, gathered, strict=True))[:remaining]:
            yield Gradients(self._unflatten(gradients), *report)

    def _flatten(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """All gradients on the CPU, where gloo sums; missing ones are zeros, which add nothing."""
        pairs = zip(self.gradient_shapes, gradients, strict=True)
        return torch.cat(
            [torch.zeros(s.numel()) if g is None else g.flatten().cpu() for s, g in pairs]
        )

    def _unflatten(self, flat: Tensor) -> list[Tensor | None]:
        pieces = flat.split([shape.numel() for shape in self.gradient_shapes])
        pairs = zip(pieces, self.gradient_shapes, strict=True)
        return [piece.view(shape).to(self.device) for piece, shape in pairs]
