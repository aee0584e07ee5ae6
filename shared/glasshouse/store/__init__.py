"""The run directory and its files: rollout log, metrics, events, checkpoints, monitor results.

Every other package reads a run through this one. Trackers, reports and pages are copies.
"""

from glasshouse.store.manifest import LogSize, measure_log
from glasshouse.store.rollout_log import RolloutLog
from glasshouse.store.rollout_reader import Damage, RolloutFilter, RolloutReader, read_rollouts
from glasshouse.store.run_directory import RunDirectory

__all__ = [
    "Damage",
    "LogSize",
    "RolloutFilter",
    "RolloutLog",
    "RolloutReader",
    "RunDirectory",
    "measure_log",
    "read_rollouts",
]
