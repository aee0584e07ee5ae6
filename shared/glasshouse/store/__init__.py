"""The store: what lasts of a run. The run directory is the truth; everything else reads it."""

from typing import TYPE_CHECKING, Any

from glasshouse.store.manifest import Storage, storage
from glasshouse.store.reading import Damage, Query, Reader, read
from glasshouse.store.rollouts import RolloutLog

if TYPE_CHECKING:
    from glasshouse.store.rundir import RunDirectory

__all__ = [
    "Damage",
    "Query",
    "Reader",
    "RolloutLog",
    "RunDirectory",
    "Storage",
    "read",
    "storage",
]


def __getattr__(name: str) -> Any:
    """A run directory saves models and so brings torch, seconds that a reader need not wait."""
    if name == "RunDirectory":
        from glasshouse.store.rundir import RunDirectory

        return RunDirectory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
