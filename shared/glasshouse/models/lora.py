"""Low-rank adapters (LoRA) through peft."""

from __future__ import annotations

import torch

from glasshouse.errors import ConfigError
from glasshouse.models.policy import Policy


def add_adapters(policy: Policy, rank: int, seed: int) -> Policy:
    """Adds LoRA adapters to every linear layer; only they are trained. Checkpoints are saved with the
    adapters merged, in the standard layout."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError(
            'learn.lora_rank needs peft; install it with: pip install "glasshouse[lora]".'
        ) from None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lora_config = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = get_peft_model(policy.model, lora_config)
    return Policy(policy.name, model, policy.tokenizer, policy.card)
