"""Generation: from prompts to completions. It knows tokens, not tasks.

`Generator` is the protocol, `TorchGenerator` the default engine. A generator gets weights with a
version (`load_weights`) and records that version in every completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from glasshouse.generate.sampling import SamplingParams
from glasshouse.generate.torch_engine import TorchGenerator
from glasshouse.types import Completion, Request

__all__ = ["Generator", "SamplingParams", "TorchGenerator"]


class Generator(Protocol):
    """Anything that turns requests into completions."""

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Switches to these weights and records this version in completions from now on."""

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        """Returns one list of completions per request, in order."""
