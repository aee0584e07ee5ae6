"""Samples inside vLLM with our own noise, so that a seed means the same in every engine.

vLLM's own seeds are per request and per backend: its CPU build fails on long batches of seeded requests, and
the samples of a seed differ between backends. This logits processor replaces vLLM's sampler:

    logits (R, V) ──► sample_tokens with the noise of (row key, position) ──► one finite logit per row

The row then holds -inf except at the sampled token, whose "logit" is its log-probability. vLLM takes the
most likely token, which is the only one, and with `logprobs_mode="processed_logits"` returns that number:
the log-probability at the sampling temperature before truncation, as `TorchGenerator` reports it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from glasshouse import randomness
from glasshouse.generate.sampling import sample_tokens
from glasshouse.types import SamplingParams

CLASS_PATH = f"{__name__}:KeyedSampler"
"""How vLLM names a logits processor that it is to import, in each of its processes."""


def encode_arguments(key: int, sampling: SamplingParams) -> dict[str, Any]:
    """What `KeyedSampler` needs to know about a request: vLLM's `SamplingParams.extra_args`."""
    values = asdict(sampling)
    del values["stop"]  # vLLM handles stop strings itself
    return {"glasshouse": {"key": key, "sampling": values}}


class RowState(NamedTuple):
    """What is known about one row of the batch."""

    noise: Tensor
    """(max_tokens,) one number in (0, 1) per position."""
    output: list[int]
    """The tokens of the row so far; vLLM appends to this list."""
    sampling: SamplingParams


class KeyedSampler(LogitsProcessor):
    """vLLM's interface to `sample_tokens`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, RowState] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.rows, batch_update, make_row_state)

    def apply(self, logits: Tensor) -> Tensor:
        """Replaces the logits of our rows in place."""
        if not self.rows:
            return logits
        indices = sorted(self.rows)
        states = [self.rows[index] for index in indices]
        noise = torch.stack([s.noise[min(len(s.output), len(s.noise) - 1)] for s in states])
        rows = torch.tensor(indices, device=logits.device)
        tokens, logprobs = sample_tokens(
            logits[rows].float(), noise.to(logits.device), states[0].sampling,
        )  # fmt: skip
        logits[rows] = -torch.inf
        logits[rows, tokens] = logprobs.to(logits.dtype)
        return logits


def make_row_state(params: Any, prompt: list[int] | None, output: list[int]) -> RowState | None:
    """The state of a new row, from vLLM's sampling parameters; None for requests of others."""
    arguments = (params.extra_args or {}).get("glasshouse")
    if arguments is None:
        return None
    sampling = SamplingParams(**arguments["sampling"])
    keys = np.array([arguments["key"]], dtype=np.uint64)
    noise = torch.from_numpy(randomness.uniforms(keys, 0, sampling.max_tokens)[0]).float()
    return RowState(noise, output, sampling)
