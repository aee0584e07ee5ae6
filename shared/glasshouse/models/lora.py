"""Low-rank adapters through peft: train a few numbers a layer instead of all of them."""

from __future__ import annotations

import torch

from glasshouse.errors import ConfigError
from glasshouse.models.policy import Policy


def add_adapters(policy: Policy, rank: int, seed: int) -> Policy:
    """The policy with LoRA adapters on every linear layer; only they are trained. Checkpoints are
    saved with the adapters merged in, in the standard layout."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError(
            'learn.lora_rank needs peft; install it with: pip install "glasshouse[lora]".'
        ) from None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = get_peft_model(policy.model, settings)
    return Policy(policy.name, model, policy.tokenizer, policy.card)
