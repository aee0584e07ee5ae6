"""The one definition of a large model, and what is computed otherwise for it.

The published results of small models must keep every bit, and most of these choices cost small models time. So a
model below `LARGE_MODEL_PARAMETERS` keeps the plain choice each time.

All choices together make a step of SmolLM2-135M 5.6 times as fast as TRL's (docs/benchmarks.md). The gain of a choice
below is how much longer an update takes without it: a model of SmolLM2's width with 4 layers, 64 completions of 8
prompts that share 100 of 108 tokens, one thread, CPU time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LARGE_MODEL_PARAMETERS = 10_000_000
"""A model with at least this many parameters is large. `device: auto` runs smaller ones on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Choices that pay for large models only. The defaults are those of small models.

    Example: `tuning_of(policy.model).kl_every`
    """

    onednn: bool = False
    """Products with weights by oneDNN instead of MKL (`matmul`), and nothing folded into a weight, which has more
    numbers than the activations (`fused_ops`). Learning 1.1 times as fast, decoding 1.2 to 4 times."""
    shared_start: bool = False
    """The tokens with which all prompts start are computed and stored once (`shared_prefix`, decoder): 1.14 times."""
    gradients_in_place: bool = False
    """The fused weights of a block are computed once, and backward passes add to their gradients: 1.04 times, and 13 %
    less memory for an update of SmolLM2 (5.5 instead of 6.3 GB, counted by a trace of all allocations)."""
    least_padding: bool = False
    """Microbatches are divided where padding costs least, not filled one after another (`microbatches`): 1.04 times."""
    shared_reference: bool = False
    """The starting policy computes each prompt once, too: 1.2 times with a KL term."""
    fused_adamw: bool = False
    """AdamW in one pass over memory, on a CPU. No gain was measured; published results of large models need it."""
    fused_adapters: bool = False
    """LoRA models use our own forward pass. A step of SmolLM2 is 1.1 times as fast as with all weights."""
    block_sampling: bool = False
    """Tokens are sampled with one exponential per logit (`generate.sampling`), which pays for large vocabularies."""
    keep_freed_memory: bool = False
    """The process keeps freed memory (`devices.keep_freed_memory`). Elementwise operations on new tensors of more than
    32 MB take a quarter of the time."""
    kl_every: int = 1
    """Steps between two measurements of the KL metric, by default. Each computes 16 completions."""


SMALL = Tuning()
LARGE = Tuning(
    onednn=True,
    shared_start=True,
    gradients_in_place=True,
    least_padding=True,
    shared_reference=True,
    fused_adamw=True,
    fused_adapters=True,
    block_sampling=True,
    keep_freed_memory=True,
    kl_every=10,
)


def tuning_of(model: Any) -> Tuning:
    """The choices for a model of this size."""
    return tuning_for(sum(p.numel() for p in model.parameters()))


def tuning_for(parameters: int) -> Tuning:
    """The choices for a model with this many parameters."""
    return LARGE if parameters >= LARGE_MODEL_PARAMETERS else SMALL
