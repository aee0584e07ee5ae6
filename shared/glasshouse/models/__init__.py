"""Models: the language model being trained.

policy.py         `load_policy` and `save_policy` any Hugging Face causal LM, or the pocket model
chat_template.py  the prompt of a chat, and what of it the model sees
llama.py          fast forward pass for the Llama family
logprobs.py       log-probabilities of completions; shared_prefix.py computes each prompt once
lora.py           low-rank adapters
tokenizer.py      the pocket model's tokenizer
"""

from glasshouse.models.policy import Policy, load_policy, save_policy

__all__ = ["Policy", "load_policy", "save_policy"]
