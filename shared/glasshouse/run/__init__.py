"""Running: the loop that joins the rooms, evaluation, and what a person sees of it."""

from glasshouse.run.loop import Run

__all__ = ["Run"]
