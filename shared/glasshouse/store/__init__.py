"""The store: what lasts of a run. The run directory is the truth; everything else reads it."""

from glasshouse.store.rollouts import RolloutLog
from glasshouse.store.rundir import RunDirectory

__all__ = ["RolloutLog", "RunDirectory"]
