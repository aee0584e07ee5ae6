"""Policy: the language model being trained.

`load("pocket")` opens the embedded default, `load("folder")` or `load("org/name")` any Hugging
Face causal LM; `save` writes the standard layout.
"""

from glasshouse.models.policy import Policy, load, save

__all__ = ["Policy", "load", "save"]
