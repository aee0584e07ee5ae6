"""Monitors: what flags a rollout. Each sees only the view that its scope allows (views.py)."""
