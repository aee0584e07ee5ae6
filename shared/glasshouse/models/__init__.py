"""Causal language models: load, save, render prompts, compute log-probabilities."""
