"""Glasshouse: grow language models under RL and see whether their reasoning can still be read."""

__version__ = "0.1.0"
