"""Evaluation of a model or a checkpoint. It constructs no optimizer and no reference model."""
