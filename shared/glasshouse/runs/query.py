"""Query, print and export the rollout log of a run."""

from glasshouse.runs.export import export_rows, run_sql
from glasshouse.runs.manifest import format_bytes, measure_log, read_manifest
from glasshouse.runs.rollout_reader import RolloutFilter, RolloutReader, find_missing_steps
from glasshouse.runs.rows import encode_rows

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
