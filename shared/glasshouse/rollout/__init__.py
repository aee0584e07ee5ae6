"""Rollout collection: problems in, graded rollouts out."""
