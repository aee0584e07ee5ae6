"""What the collector needs of a backend: something that turns chunks of requests into completions.

A chunk always holds the same requests in the same order, so that its completions do not depend on
who generated them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from glasshouse.types import Completion, Request, SamplingParams

Chunk = list[Request]
ChunkCompletions = list[list[list[Completion]]]
"""For each chunk, for each request, its completions."""


class PendingCompletions(Protocol):
    """Chunks that are being generated."""

    def result(self) -> ChunkCompletions:
        """Wait for the completions and return them."""


class Sampler(Protocol):
    """Generates completions. Evaluation needs nothing else."""

    def submit(
        self, chunks: Sequence[Chunk], sampling: SamplingParams, check_interrupt: Callable[[], None]
    ) -> PendingCompletions:
        """Start generating with the current weights. At most `max_offpolicy_steps` updates may follow before
        the result is collected. `check_interrupt` is called between chunks; an exception from it ends the call."""
