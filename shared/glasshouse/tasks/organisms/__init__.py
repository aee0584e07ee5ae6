"""Organisms: tasks with a planted behaviour whose cause is known."""
