"""Training: `Trainer(config).train()`.

loop.py           the training loop, top to bottom
build.py          configuration to parts: model, task, problems, penalties, backend
session.py        run directory, checkpoints, trackers, display around the loop
trainer.py        start or resume, train, summarize
checkpointing.py  when to save and what to keep; resume.py, interruption.py
metrics.py        metrics of a step; diagnostics.py: warnings when a run cannot learn
display.py        progress bar and tables
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glasshouse.training.trainer import Trainer

__all__ = ["Trainer"]


def __getattr__(name: str) -> Any:
    """Import `Trainer`, and torch with it, only when it is used."""
    if name == "Trainer":
        from glasshouse.training.trainer import Trainer

        return Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
