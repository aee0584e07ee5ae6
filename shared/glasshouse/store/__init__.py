"""The store: what lasts of a run. The run directory is the truth; everything else reads it."""

from glasshouse.store.manifest import Storage, storage
from glasshouse.store.rollout_log import RolloutLog
from glasshouse.store.rollout_reader import Damage, Query, Reader, read
from glasshouse.store.run_directory import RunDirectory

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
