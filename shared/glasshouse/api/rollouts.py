"""Query, print and export the rollout log of a run."""

from glasshouse.store import RolloutFilter, RolloutReader, measure_log
from glasshouse.store.export import export_rows, run_sql
from glasshouse.store.manifest import format_bytes, read_manifest
from glasshouse.store.rollout_reader import find_missing_steps
from glasshouse.store.rollout_rows import encode_rows

__all__ = [
    "RolloutFilter",
    "RolloutReader",
    "encode_rows",
    "export_rows",
    "find_missing_steps",
    "format_bytes",
    "measure_log",
    "read_manifest",
    "run_sql",
]
