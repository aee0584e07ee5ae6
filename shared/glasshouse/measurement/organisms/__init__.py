"""Evaluations of organisms: planted and control arm."""
