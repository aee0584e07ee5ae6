"""Generation: prompts to completions. It knows tokens, not tasks.

`Generator` is the protocol; `TorchGenerator` the default engine. A generator is handed weights
with a version (`load`) and stamps that version on every completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from glasshouse.generate.sampling import Sampling
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.types import Completion, Request

__all__ = ["Generator", "Sampling", "TorchGenerator"]


class Generator(Protocol):
    """Anything that turns requests into completions."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Generate with these weights from now on, and stamp this version."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """One list of completions a request, in order."""
