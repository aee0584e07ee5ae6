"""Interventions on the CoT of a checkpoint: truncate, edit, replace."""
