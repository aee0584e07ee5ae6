"""How next-token logits are computed with a cache: for the Llama family (`llama_decoder`), and here for any causal
LM. `make_decoder` is the only entrance.

A decoder holds rows that are being decoded. `prefill` fills them (each prompt is computed
once, whatever the group size), `step` advances all by one token, `compact` drops finished ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from glasshouse.errors import ConfigError
from glasshouse.generate.llama_decoder import LlamaDecoder
from glasshouse.models import llama
from glasshouse.models.logprobs import autocast_to


class Decoder(Protocol):
    """What the generation loop needs from a model."""

    compact_when_active_below: float
    """`compact` pays when the share of active rows falls below this."""

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        """Logits `(len(prompts) * group_size, V)` for the first new token; reserves cache for
        `max_new_tokens` tokens."""

    def step(self, tokens: Tensor) -> Tensor:
        """Logits `(S, V)` after one more token in every row."""

    def compact(self, active: Tensor) -> Tensor:
        """Drops rows that are not active, `(S,)` bool. Returns the old indices of the remaining rows
        in their new order; a few inactive ones may stay if dropping them would cost more."""

    def release(self) -> None:
        """Frees the memory of the rows; the weights stay."""

    def autocast(self) -> AbstractContextManager[Any]:
        """A context around all calls from `prefill` to `release`."""


def make_decoder(model: Any, dtype: torch.dtype | None = None) -> Decoder:
    """The fastest decoder that supports the model; `dtype` is that of matrix products, by default the model's."""
    if llama.is_supported(model):
        return LlamaDecoder(model, dtype)
    return TransformersDecoder(model, dtype)


class TransformersDecoder:
    """Any causal LM, through transformers' forward and cache; prompts are left-padded."""

    compact_when_active_below = 0.75

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that of matrix products, by default the model's."""
        self.model = model
        self.dtype, self.device = dtype, next(model.parameters()).device
        self.cache: Any = None

    def prefill(
        self, prompts: Sequence[Sequence[int]], group_size: int, max_new_tokens: int
    ) -> Tensor:
        longest = max(len(p) for p in prompts)
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        tokens, self.mask = tokens.to(self.device), mask.to(self.device)
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        out = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache = getattr(out, "past_key_values", None)
        if self.cache is None:
            raise ConfigError(
                f'A model of type "{self.model.config.model_type}" has no attention cache, which '
                "generation requires; set `model` to another one."
            )
        # Every kind of cache can be reordered; those of hybrid models (attention and state space) can
        # be neither repeated nor selected from.
        repeats = torch.arange(len(prompts), device=self.device).repeat_interleave(group_size)
        self.cache.reorder_cache(repeats)
        self.mask = self.mask.repeat_interleave(group_size, 0)
        return out.logits[:, -1].float().repeat_interleave(group_size, 0)

    def step(self, tokens: Tensor) -> Tensor:
        self.mask = F.pad(self.mask, (0, 1), value=1)
        out = self.model(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.mask.sum(1, keepdim=True) - 1,
            past_key_values=self.cache,
            use_cache=True,
        )
        return out.logits[:, -1].float()

    def compact(self, active: Tensor) -> Tensor:
        remaining = active.nonzero()[:, 0]
        self.cache.reorder_cache(remaining)
        self.mask = self.mask[remaining]
        return remaining

    def release(self) -> None:
        self.cache = None

    def autocast(self) -> AbstractContextManager[Any]:
        """Inside one context converted weights are cached, so they are converted once, not per token."""
        return autocast_to(self.dtype, self.device)
