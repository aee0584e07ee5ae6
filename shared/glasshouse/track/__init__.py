"""Mirrors of a run: its metrics shown by a tracker that people already look at.

    RUN/results/metrics.jsonl ─┐
                               ├──► records ──► a feed, in a thread of its own ──► mirror ──► tracker
    evaluations in events.jsonl┘

The run directory is the truth. A tracker that cannot start stops the run with the reason; one that
fails later is reported and dropped, and nothing that the run computes depends on any of it.

Example: `glasshouse train trackers=[trackio]`, or afterwards `glasshouse track RUN --to trackio`.
"""

from glasshouse.track.async_log import Mirrors, start
from glasshouse.track.base import Ending, Mirror
from glasshouse.track.records import Record, evaluated, trained
from glasshouse.track.registry import MIRRORS, check

__all__ = [
    "MIRRORS",
    "Ending",
    "Mirror",
    "Mirrors",
    "Record",
    "check",
    "evaluated",
    "start",
    "trained",
]
