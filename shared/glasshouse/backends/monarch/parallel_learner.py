"""A learner in several processes: each differentiates every N-th unit of the step's work.

    round 1   rank 0: unit 0    rank 1: unit 1    all gather both gradients, add 0, then 1
    round 2   rank 0: unit 2    rank 1: unit 3    all gather both gradients, add 2, then 3

Gradients are added one unit after another in the same order as one process does, so that the sum
has the same bits, whatever the number of processes. Every rank then takes the same update.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glasshouse.errors import RunError
from glasshouse.learn import Learner, Sample
from glasshouse.learn.learner import Outcome

PATIENCE = timedelta(hours=1)
"""How long a rank waits for the others; the controller sees a dead one long before."""


def meet(file: str, rank: int, ranks: int) -> None:
    """Join the other learners. The file may go once all have met."""
    store = dist.FileStore(file, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    dist.barrier()


class ParallelLearner(Learner):
    """One of several learners that hold the same weights and take the same updates."""

    def _outcomes(self, samples: list[Sample], rows: int, tokens: int) -> Iterator[Outcome]:
        units, rank, ranks = self._units(samples), dist.get_rank(), dist.get_world_size()
        for start in range(0, len(units), ranks):
            mine: Outcome | None = None
            failed = ""
            try:
                if start + rank < len(units):
                    mine = self._differentiate(rows, tokens, units[start + rank])
            except RunError as error:  # the others must hear of it, or they would wait for ever
                failed = str(error)
            yield from self._exchange(mine, failed, len(units) - start)

    def _exchange(self, mine: Outcome | None, failed: str, left: int) -> Iterator[Outcome]:
        """A round's outcomes in order of rank; any rank's failure is everybody's."""
        ranks = dist.get_world_size()
        spoken: list[Any] = [None] * ranks
        dist.all_gather_object(
            spoken, (failed, mine and (mine.loss, mine.gap, mine.sums))
        )  # fmt: skip
        for text, _ in spoken:
            if text:
                raise RunError(text)
        flat = self._flat(mine)
        gathered = [torch.empty_like(flat) for _ in range(ranks)]
        dist.all_gather(gathered, flat)
        for (_, said), gradients in list(zip(spoken, gathered, strict=True))[:left]:
            loss, gap, sums = said
            yield Outcome(loss, gap, sums, self._shaped(gradients))

    def _flat(self, outcome: Outcome | None) -> Tensor:
        """All gradients in one row; zeros where there is none, which add nothing."""
        flat, start = torch.zeros(sum(p.numel() for p in self.parameters)), 0
        for parameter, gradient in zip(
            self.parameters, outcome.gradients if outcome else (), strict=False
        ):
            if gradient is not None:
                flat[start : start + parameter.numel()] = gradient.reshape(-1)
            start += parameter.numel()
        return flat

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split([p.numel() for p in self.parameters])
        return [
            piece.view(parameter.shape)
            for piece, parameter in zip(pieces, self.parameters, strict=True)
        ]
