"""Running: the loop that joins the rooms, evaluation, and what a person sees of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glasshouse.train.loop import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    """`Run` brings torch with it; a worker that only waits for work needs neither."""
    if name == "Run":
        from glasshouse.train.loop import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
